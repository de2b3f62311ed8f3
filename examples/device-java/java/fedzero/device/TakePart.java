package fedzero.device;

import java.io.IOException;

/** Until the run has ended; connections that break are made again. */
final class TakePart {
    private static final double LONGEST = 30;

    private TakePart() {}

    static void with(Device device, Device.Listener listener) throws IOException, InterruptedException {
        double pause = 0.5;
        while (!device.finished) {
            long before = device.answered;
            try {
                connected(device);
            } catch (Hopeless reason) {
                throw reason;
            } catch (IOException reason) {
                listener.say(reason.getMessage() + "; again in " + Math.max(pause, device.pause) + " s");
            }
            if (device.finished) return;
            pause = device.answered > before ? 0.5 : Math.min(2 * pause, LONGEST);
            Thread.sleep((long) (1000 * Math.max(pause, device.pause)));
            device.pause = 0;
        }
    }

    private static void connected(Device device) throws IOException {
        Gateway gateway = new Gateway(device.ticket.url);
        gateway.send(device.begin());
        while (!device.finished && device.pause == 0) {
            byte[] answer = device.receive(gateway.receive());
            if (answer != null) gateway.send(answer);
        }
    }
}
