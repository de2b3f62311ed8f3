package fedzero.device;

import java.util.Arrays;

/** https://HOST/join#TEXT, with 01 ‖ run ‖ ticket ‖ fingerprint in base64url. */
final class Ticket {
    private static final String LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    final String url;
    final byte[] run, secret, fingerprint;

    Ticket(String address) throws Hopeless {
        int mark = address.indexOf('#'), path = address.indexOf("/join");
        byte[] data = mark < 0 ? new byte[0] : decoded(address.substring(mark + 1));
        boolean web = address.startsWith("https://") || address.startsWith("http://");
        if (!web || path < 0 || data.length != 49 || data[0] != 1)
            throw new Hopeless("this address is no ticket: it looks like https://HOST/join#… and has all behind the #");
        url = address.substring(0, path);
        run = Arrays.copyOfRange(data, 1, 17);
        secret = Arrays.copyOfRange(data, 17, 33);
        fingerprint = Arrays.copyOfRange(data, 33, 49);
    }

    private static byte[] decoded(String text) {
        byte[] found = new byte[text.length() * 6 / 8];
        int bits = 0, kept = 0, at = 0;
        for (char each : text.toCharArray()) {
            int value = LETTERS.indexOf(each);
            if (value < 0) return new byte[0];
            bits = bits << 6 | value;
            kept += 6;
            if (kept >= 8 && at < found.length) found[at++] = (byte) (bits >>> (kept -= 8));
        }
        return found;
    }
}
