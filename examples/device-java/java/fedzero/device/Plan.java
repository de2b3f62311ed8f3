package fedzero.device;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** What a device must know of a run, read from the binary plan; anything outside of the profile is refused. */
final class Plan {
    static final long LARGEST = 1 << 24;

    final String name;
    final byte[] root;
    final long rounds;
    final int[] widths;
    final double[] scales;
    final byte[][] names;
    final int distribution, rule, directions, steps, difference, batch;
    final double rate, beta, radius, clip;
    final float[] mean, deviation;
    final List<String> labels = new ArrayList<>();
    final int leastRows;
    final boolean begins;

    Plan(byte[] data) throws Broken, Hopeless {
        List<Object> all = Pack.list(data, 9);
        if (Pack.number(all.get(0)) != 1 || Pack.number(all.get(1)) != 1)
            throw new Hopeless("the run has another version of the plan: get a newer client");
        name = Pack.text(all.get(2));
        root = Pack.bytes(all.get(3));
        rounds = Pack.number(all.get(5));
        List<Object> method = Pack.list(all.get(7)), task = Pack.list(all.get(8));
        expect(method.size() >= 11 && task.size() >= 7 && root.length == 32, "fields that are missing");
        distribution = Pack.small(method.get(0));
        rule = Pack.small(method.get(1));
        rate = Pack.real(method.get(2));
        List<Object> hypers = Pack.list(method.get(3));
        beta = rule == 1 && !hypers.isEmpty() ? Pack.real(hypers.get(0)) : 0;
        radius = Pack.real(method.get(4));
        directions = Pack.small(method.get(5));
        steps = Pack.small(method.get(6));
        difference = Pack.small(method.get(7));
        clip = Pack.real(method.get(8));
        batch = Pack.number(method.get(10)) == 2 ? Integer.MAX_VALUE : Pack.small(method.get(9));
        expect(distribution == 2 || distribution == 4, "directions of another kind");
        expect(rule == 0 || rule == 1 && hypers.size() == 2, "another rule");
        expect(difference == 1 || difference == 2, "differences of another kind");
        expect(directions >= 1 && directions <= 1 << 16 && steps >= 1 && steps <= 1 << 10 && batch >= 1, "odd counts");
        expect(Pack.number(task.get(0)) == 1, "another kind of model");
        widths = whole(Pack.list(task.get(1)));
        expect(widths.length >= 2 && widths.length <= 17, "another number of layers");
        mean = floats(Pack.list(task.get(2)));
        deviation = floats(Pack.list(task.get(3)));
        for (Object each : Pack.list(task.get(4))) labels.add(Pack.text(each));
        leastRows = Pack.small(task.get(6));
        List<Object> tensors = Pack.list(all.get(6));
        expect(tensors.size() == 2 * (widths.length - 1) && widths[widths.length - 1] <= 256, "other tensors");
        scales = new double[tensors.size()];
        names = new byte[tensors.size()][];
        boolean known = true;
        long size = 0;
        for (int t = 0; t < tensors.size(); t++) {
            List<Object> tensor = Pack.list(tensors.get(t));
            int out = widths[t / 2 + 1], in = widths[t / 2];
            int[] shape = t % 2 == 0 ? new int[] {out, in} : new int[] {out};
            expect(tensor.size() >= 4 && Pack.number(tensor.get(0)) == 1, "a tensor of another type");
            expect(Arrays.equals(whole(Pack.list(tensor.get(1))), shape), "a tensor of another shape");
            scales[t] = Pack.real(tensor.get(2));
            names[t] = name(Pack.bytes(tensor.get(3)), shape);
            known &= scales[t] > 0;
            size += (long) out * (t % 2 == 0 ? in : 1);
        }
        expect(size <= LARGEST, "a model of more than " + LARGEST + " numbers");
        for (float[] each : new float[][] {mean, deviation}) expect(each.length == 1 || each.length == widths[0], "columns of another number");
        begins = known;
    }

    /** The core makes a label of a name, the type and the shape, and this one has to be the same. */
    private static byte[] name(byte[] label, int[] shape) throws Hopeless {
        int end = 0;
        while (end < label.length && label[end] != 0) end++;
        String sizes = shape.length == 2 ? "(" + shape[0] + ", " + shape[1] + ")" : "(" + shape[0] + ",)";
        byte[] name = Arrays.copyOf(label, end), rest = ("\0float32\0" + sizes + "\0").getBytes();
        expect(end < 32 && Arrays.equals(label, Bytes.joined(name, rest)), "a label of another form");
        return name;
    }

    private static void expect(boolean holds, String what) throws Hopeless {
        if (!holds) throw new Hopeless("the run has " + what + ", which is not in this client's profile");
    }

    private static int[] whole(List<Object> values) throws Broken {
        int[] found = new int[values.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Pack.small(values.get(i));
            if (found[i] < 1 || found[i] > LARGEST) throw new Broken("a size of " + found[i]);
        }
        return found;
    }

    private static float[] floats(List<Object> values) throws Broken {
        float[] found = new float[values.size()];
        for (int i = 0; i < found.length; i++) found[i] = (float) Pack.real(values.get(i));
        return found;
    }

    /** η of a round, from the pairs of a message. */
    double rate(byte[] pairs, long round) throws Broken {
        if (pairs.length % 16 != 0) throw new Broken("rates are no pairs");
        java.nio.ByteBuffer from = java.nio.ByteBuffer.wrap(pairs).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        double found = rate;
        while (from.hasRemaining() && from.getLong() <= round) found = from.getDouble();
        return found;
    }
}
