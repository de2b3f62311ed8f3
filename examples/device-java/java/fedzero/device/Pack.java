package fedzero.device;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** MessagePack in its shortest form: Long, Double, String, byte[], Boolean, List and null. */
final class Pack {
    private static final int DEEPEST = 16;

    private final ByteBuffer in;

    private Pack(byte[] data) {
        in = ByteBuffer.wrap(data);
    }

    /** Integers that are not negative, texts, bytes and null, as one array. */
    static byte[] array(Object... fields) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        if (fields.length > 15) throw new IllegalArgumentException("an array of more than 15 fields");
        out.write(0x90 | fields.length);
        for (Object each : fields) {
            if (each == null) {
                out.write(0xc0);
            } else if (each instanceof byte[]) {
                byte[] bytes = (byte[]) each;
                length(out, bytes.length, 0xc4);
                out.write(bytes, 0, bytes.length);
            } else if (each instanceof String) {
                byte[] bytes = ((String) each).getBytes(StandardCharsets.UTF_8);
                if (bytes.length < 32) out.write(0xa0 | bytes.length);
                else length(out, bytes.length, 0xd9);
                out.write(bytes, 0, bytes.length);
            } else {
                whole(out, ((Number) each).longValue());
            }
        }
        return out.toByteArray();
    }

    private static void length(ByteArrayOutputStream out, int count, int first) {
        int size = count < 1 << 8 ? 1 : count < 1 << 16 ? 2 : 4;
        out.write(first + (size == 4 ? 2 : size - 1));
        big(out, count, size);
    }

    private static void whole(ByteArrayOutputStream out, long value) {
        int size = value < 1L << 8 ? 1 : value < 1L << 16 ? 2 : value < 1L << 32 ? 4 : 8;
        if (value < 128) {
            out.write((int) value);
            return;
        }
        out.write(size == 1 ? 0xcc : size == 2 ? 0xcd : size == 4 ? 0xce : 0xcf);
        big(out, value, size);
    }

    private static void big(ByteArrayOutputStream out, long value, int size) {
        for (int i = size - 1; i >= 0; i--) out.write((int) (value >>> 8 * i) & 0xff);
    }

    /** The one value in these bytes; raises Broken if they are anything else. */
    static Object read(byte[] data) throws Broken {
        Pack from = new Pack(data);
        try {
            Object found = from.next(0);
            if (from.in.hasRemaining()) throw new Broken("bytes behind a message");
            return found;
        } catch (java.nio.BufferUnderflowException error) {
            throw new Broken("a message that is cut short");
        }
    }

    @SuppressWarnings("unchecked")
    static List<Object> list(Object value) throws Broken {
        if (!(value instanceof List)) throw new Broken("an array was expected");
        return (List<Object>) value;
    }

    static List<Object> list(byte[] data, int least) throws Broken {
        List<Object> found = list(read(data));
        if (found.size() < least) throw new Broken("an array of " + found.size() + " fields, not " + least);
        return found;
    }

    static long number(Object value) throws Broken {
        if (!(value instanceof Long) || (Long) value < 0) throw new Broken("a number was expected");
        return (Long) value;
    }

    static int small(Object value) throws Broken {
        long found = number(value);
        if (found > Integer.MAX_VALUE) throw new Broken("a number that is too large");
        return (int) found;
    }

    static double real(Object value) throws Broken {
        if (!(value instanceof Double)) throw new Broken("a float was expected");
        return (Double) value;
    }

    static String text(Object value) throws Broken {
        if (!(value instanceof String)) throw new Broken("a text was expected");
        return (String) value;
    }

    static byte[] bytes(Object value) throws Broken {
        if (!(value instanceof byte[])) throw new Broken("bytes were expected");
        return (byte[]) value;
    }

    private Object next(int depth) throws Broken {
        int tag = in.get() & 0xff;
        if (depth > DEEPEST) throw new Broken("a message that is too deep");
        if (tag < 0x80) return (long) tag;
        if (tag >= 0x90 && tag < 0xa0) return items(tag & 15, depth);
        if (tag >= 0xa0 && tag < 0xc0) return string(tag & 31);
        switch (tag) {
            case 0xc0: return null;
            case 0xc2: return false;
            case 0xc3: return true;
            case 0xc4: return raw(in.get() & 0xff);
            case 0xc5: return raw(in.getShort() & 0xffff);
            case 0xc6: return raw(in.getInt());
            case 0xcb: return in.getDouble();
            case 0xcc: return (long) (in.get() & 0xff);
            case 0xcd: return (long) (in.getShort() & 0xffff);
            case 0xce: return in.getInt() & 0xffffffffL;
            case 0xcf: return in.getLong();
            case 0xd9: return string(in.get() & 0xff);
            case 0xda: return string(in.getShort() & 0xffff);
            case 0xdc: return items(in.getShort() & 0xffff, depth);
            case 0xdd: return items(in.getInt(), depth);
            default: throw new Broken("a kind of value that no message has");
        }
    }

    private byte[] raw(int count) throws Broken {
        if (count < 0 || count > in.remaining()) throw new Broken("a message that is cut short");
        byte[] found = new byte[count];
        in.get(found);
        return found;
    }

    private String string(int count) throws Broken {
        return new String(raw(count), StandardCharsets.UTF_8);
    }

    private List<Object> items(int count, int depth) throws Broken {
        if (count < 0 || count > in.remaining()) throw new Broken("a message that is cut short");
        List<Object> found = new ArrayList<>();
        for (int i = 0; i < count; i++) found.add(next(depth + 1));
        return found;
    }
}
