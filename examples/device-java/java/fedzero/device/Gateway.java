package fedzero.device;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Polling: the response to an answer carries the next order. */
final class Gateway {
    private static final int LARGEST = 1 << 24;

    private final URL address;
    private final List<byte[]> out = new ArrayList<>();
    private final Deque<byte[]> in = new ArrayDeque<>();
    private String session;
    long up, down;

    Gateway(String url) throws IOException {
        address = new URL(url + "/fedzero/1/poll");
    }

    void send(byte[] frame) {
        out.add(frame);
    }

    byte[] receive() throws IOException {
        while (in.isEmpty()) ask();
        return in.remove();
    }

    private void ask() throws IOException {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (byte[] frame : out) {
            body.write(Bytes.u32(frame.length));
            body.write(frame);
        }
        out.clear();
        HttpURLConnection connection = (HttpURLConnection) address.openConnection();
        connection.setRequestMethod("POST");
        connection.setConnectTimeout(10_000);
        connection.setReadTimeout(90_000);
        connection.setDoOutput(true);
        connection.setInstanceFollowRedirects(false);
        connection.setFixedLengthStreamingMode(body.size());
        if (session != null) connection.setRequestProperty("fedzero-session", session);
        connection.getOutputStream().write(body.toByteArray());
        if (connection.getResponseCode() != 200) throw new Broken("the gateway answers " + connection.getResponseCode());
        String named = connection.getHeaderField("fedzero-session");
        if (named != null) session = named;
        ByteBuffer found = ByteBuffer.wrap(read(connection.getInputStream())).order(ByteOrder.LITTLE_ENDIAN);
        up += body.size();
        down += found.limit();
        while (found.hasRemaining()) {
            int length = found.remaining() < 4 ? -1 : found.getInt();
            if (length < 0 || length > found.remaining()) throw new Broken("a response that is cut short");
            byte[] frame = new byte[length];
            found.get(frame);
            in.add(frame);
        }
    }

    private static byte[] read(InputStream from) throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        byte[] some = new byte[1 << 16];
        for (int count; (count = from.read(some)) >= 0; ) {
            found.write(some, 0, count);
            if (found.size() > LARGEST) throw new Broken("a response of more than " + LARGEST + " bytes");
        }
        return found.toByteArray();
    }
}
