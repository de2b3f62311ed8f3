package fedzero.device;

/** The model and the turns of one place, in native memory; see jni/core.c. */
final class Core implements AutoCloseable {
    private final long handle;
    final Plan plan;

    /** The round that the model is ready for. */
    long round;

    Core(Plan plan, int place, Rows rows) throws Hopeless {
        this.plan = plan;
        int[] whole = {plan.distribution, plan.rule, plan.difference - 1, plan.steps, plan.directions, plan.batch, place};
        double[] real = {plan.radius, plan.beta, plan.clip};
        handle = open(plan.widths, plan.root, plan.names, whole, real, rows.inputs(plan), rows.labels(plan));
        if (handle == 0) throw new Hopeless("the core cannot follow this plan, or there is no memory for it");
    }

    void begin() {
        begin(handle, plan.scales);
        round = 0;
    }

    /** Fold the update of a round, unless it is folded already. */
    void fold(long of, double rate, byte[] scalars) throws Broken {
        if (of < round) return;
        float[] numbers = Bytes.floats(scalars);
        if (numbers.length != plan.steps * plan.directions) throw new Broken("an update of " + numbers.length + " numbers");
        expect(fold(handle, of, rate, numbers));
        round = of + 1;
    }

    byte[] digest() {
        byte[] found = new byte[8];
        digest(handle, found);
        return found;
    }

    int bytes() {
        return 4 * length(handle);
    }

    void load(byte[] state, long of) throws Broken {
        if (state.length != bytes()) throw new Broken("a checkpoint of " + state.length + " bytes, not " + bytes());
        load(handle, Bytes.floats(state));
        round = of;
    }

    byte[] save() {
        float[] state = new float[length(handle)];
        save(handle, state);
        return Bytes.packed(state, state.length);
    }

    /** The body of the answer to the order of a round. */
    byte[] reply(double rate) throws Broken {
        int count = plan.steps * plan.directions;
        float[] scalars = new float[count + 1];
        expect(turn(handle, round, rate, scalars));
        long queries = (long) plan.steps * (plan.difference == 2 ? 2 * plan.directions : plan.directions + 1);
        byte[] loss = Bytes.packed(new float[] {scalars[count]}, 1);
        return Pack.array(round, 0, digest(), Bytes.packed(scalars, count), loss, queries);
    }

    private static void expect(int status) throws Broken {
        if (status != 0) throw new Broken("the core says " + status + " (fz_status)");
    }

    @Override
    public void close() {
        close(handle);
    }

    private static native long open(int[] widths, byte[] root, byte[][] names, int[] whole, double[] real, float[] x, byte[] y);

    private static native void close(long handle);

    private static native void begin(long handle, double[] scales);

    private static native int length(long handle);

    private static native void load(long handle, float[] state);

    private static native void save(long handle, float[] state);

    private static native int fold(long handle, long round, double rate, float[] scalars);

    private static native void digest(long handle, byte[] digest);

    private static native int turn(long handle, long round, double rate, float[] scalars);
}
