package fedzero.device;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;

/** Little-endian numbers, bytes behind each other, SHA-256. */
final class Bytes {
    private Bytes() {}

    static byte[] u32(long value) {
        return ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt((int) value).array();
    }

    static byte[] u64(long value) {
        return ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(value).array();
    }

    static byte[] joined(byte[]... parts) {
        int size = 0;
        for (byte[] each : parts) size += each.length;
        ByteBuffer found = ByteBuffer.allocate(size);
        for (byte[] each : parts) found.put(each);
        return found.array();
    }

    static float[] floats(byte[] data) throws Broken {
        if (data.length % 4 != 0) throw new Broken("packed numbers of " + data.length + " bytes");
        float[] found = new float[data.length / 4];
        ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(found);
        return found;
    }

    static byte[] packed(float[] values, int count) {
        ByteBuffer found = ByteBuffer.allocate(4 * count).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < count; i++) found.putFloat(values[i]);
        return found.array();
    }

    static byte[] sha256(byte[]... parts) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (byte[] each : parts) digest.update(each);
            return digest.digest();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    static String hex(byte[] data) {
        StringBuilder found = new StringBuilder();
        for (byte each : data) found.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        return found.toString();
    }
}
