package fedzero.device;

import java.io.File;

/** java -Djava.library.path=build -cp build/classes fedzero.device.Main TICKET ROWS.csv FOLDER */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 3) {
            System.err.println("usage: fedzero.device.Main TICKET ROWS.csv FOLDER");
            System.exit(2);
        }
        System.loadLibrary("fedzero_device");
        Device.Listener listener = new Device.Listener() {
            @Override
            public void say(String text) {
                System.err.println("fedzero-device: " + text);
            }

            @Override
            public void sent(long round, float[] scalars, float loss) {
                if (System.getenv("FEDZERO_SENT") != null) System.out.println(round + " " + loss + " " + java.util.Arrays.toString(scalars));
            }
        };
        try {
            Store store = new Store(new File(arguments[2]));
            Rows rows = new Rows(new File(arguments[1]));
            TakePart.with(new Device(new Ticket(arguments[0]), store, Keys.in(store), rows, listener), listener);
        } catch (Hopeless reason) {
            listener.say(reason.getMessage());
            System.exit(2);
        }
    }
}
