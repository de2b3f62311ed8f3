package fedzero.device;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.List;

/** A device's half of fedzero-device/1: frames of the gateway in, frames for it out. It outlasts connections. */
final class Device {
    /** Is told what people should know. */
    interface Listener {
        void say(String text);

        /** What left in an answer. */
        void sent(long round, float[] scalars, float loss);
    }

    private static final List<Long> HOPELESS = Arrays.asList(2L, 3L, 4L, 5L, 6L, 7L, 14L);
    private static final List<Long> LASTING = Arrays.asList(9L, 10L, 12L);
    private static final int WRITE_EVERY = 10;

    final Ticket ticket;
    private final Store store;
    private final Keys keys;
    private final Rows rows;
    private final Listener listener;
    private long place = -1;
    private byte[] gateway, nonce = new byte[16];
    private Core core;
    private boolean usable;
    private long written = -WRITE_EVERY;

    /** Of a checkpoint that is on its way. */
    private byte[] hash, digest, content;
    private long checkpoint;
    private int have;

    boolean finished;
    long answered, pause;

    Device(Ticket ticket, Store store, Keys keys, Rows rows, Listener listener) throws IOException {
        this.ticket = ticket;
        this.store = store;
        this.keys = keys;
        this.rows = rows;
        this.listener = listener;
        byte[] run = store.get("run"), number = store.get("place");
        if (run != null && !Arrays.equals(run, ticket.run))
            throw new Hopeless("this folder belongs to another run: give another one");
        if (number == null) return;
        place = Pack.number(Pack.list(number, 1).get(0));
        gateway = store.get("gateway");
        byte[] plan = store.get("plan"), model = store.get("model");
        if (plan != null) follow(plan);
        if (core == null || model == null) return;
        List<Object> kept = Pack.list(model, 3);
        core.load(Pack.bytes(kept.get(2)), written = Pack.number(kept.get(0)));
        usable = Arrays.equals(core.digest(), Pack.bytes(kept.get(1)));
    }

    private void follow(byte[] plan) throws IOException {
        if (core != null) core.close();
        core = new Core(new Plan(plan), (int) place, rows);
        core.begin();
        usable = false;
        listener.say("run '" + core.plan.name + "' of " + core.plan.rounds + " rounds");
    }

    // ---- signatures

    private byte[] statement(String kind, long of, byte[]... payload) {
        byte[] head = ("fedzero-device/1 " + kind + "\0").getBytes(StandardCharsets.US_ASCII);
        return Bytes.joined(head, ticket.run, Bytes.u32(of), Bytes.joined(payload));
    }

    private byte[] signed(byte[] message) throws IOException {
        try {
            return keys.sign(message);
        } catch (GeneralSecurityException error) {
            throw new Hopeless("the key of this device cannot sign: " + error.getMessage());
        }
    }

    private void expect(byte[] signature, String kind, byte[]... payload) throws Broken {
        if (!Keys.verify(gateway, statement(kind, place, payload), signature))
            throw new Broken("the signature of " + kind + " is not of the gateway that the ticket names");
    }

    private static byte[] numbers(List<Object> frame) throws Broken {
        return Bytes.joined(Bytes.u64(Pack.number(frame.get(1))), Bytes.u32(Pack.number(frame.get(2))), Bytes.u32(Pack.number(frame.get(3))));
    }

    // ---- frames

    /** The first frame of a connection. */
    byte[] begin() throws IOException {
        if (place >= 0) return hello();
        byte[] algorithm = {Keys.ALGORITHM};
        byte[] message = statement("enrol", 0, ticket.secret, ticket.fingerprint, algorithm, keys.point);
        return Pack.array(1, 1, ticket.secret, Keys.ALGORITHM, keys.point, signed(message));
    }

    private byte[] hello() throws IOException {
        byte[] plan = store.get("plan");
        new SecureRandom().nextBytes(nonce);
        return Pack.array(2, 1, ticket.run, place, nonce, plan == null ? new byte[0] : Bytes.sha256(plan), ready());
    }

    private Long ready() {
        return core != null && usable ? (Long) core.round : null;
    }

    /** The frame to send because of a frame, or null. */
    byte[] receive(byte[] data) throws IOException {
        List<Object> frame = Pack.list(data, 1);
        long tag = Pack.number(frame.get(0));
        int least = tag == 16 ? 6 : tag == 18 ? 5 : tag == 19 ? 6 : tag == 25 ? 4 : 3;
        if (frame.size() < least) throw new Broken("frame " + tag + " has fields that are missing");
        if (core == null && tag >= 19 && tag <= 22) throw new Broken("frame " + tag + " before there is a plan");
        switch ((int) tag) {
            case 16: return enrolled(frame);
            case 17: return proof(frame);
            case 18: return welcome(frame);
            case 19: return order(frame);
            case 20: return updates(frame);
            case 21: return offered(frame);
            case 22: return piece(frame);
            case 23: return wait(frame);
            case 24: return error(frame);
            case 25: return finish(frame);
            default: throw new Broken("a frame with the tag " + tag);
        }
    }

    private byte[] enrolled(List<Object> frame) throws IOException {
        byte[] first = Pack.bytes(frame.get(3)), own = Pack.bytes(frame.get(4));
        byte[] fingerprint = Arrays.copyOf(Bytes.sha256(first, own), 16);
        long given = Pack.number(frame.get(2));
        if (!Arrays.equals(Pack.bytes(frame.get(1)), ticket.run) || !Arrays.equals(fingerprint, ticket.fingerprint)
                || !Keys.verify(own, statement("enrolled", given, ticket.secret, keys.point), Pack.bytes(frame.get(5))))
            throw new Hopeless("this is not the gateway that the ticket names");
        gateway = own;
        place = given;
        store.put("run", ticket.run);
        store.put("gateway", own);
        store.put("place", Pack.array(given)); // last: a folder with a place has the others
        listener.say("enrolled: this device has place " + given);
        return hello();
    }

    private byte[] proof(List<Object> frame) throws IOException {
        if (Pack.number(frame.get(1)) != 1) throw new Hopeless("the gateway has another version: get a newer client");
        byte[] ready = Bytes.u64(ready() == null ? -1 : core.round);
        return Pack.array(3, signed(statement("proof", place, Pack.bytes(frame.get(2)), nonce, ready)));
    }

    private byte[] welcome(List<Object> frame) throws IOException {
        byte[] sent = Pack.bytes(frame.get(1)), kept = store.get("plan"), plan = sent.length > 0 || kept == null ? sent : kept;
        expect(Pack.bytes(frame.get(4)), "welcome", nonce, Bytes.sha256(plan));
        if (sent.length == 0 || Arrays.equals(sent, kept)) return null;
        follow(sent);
        store.put("plan", sent);
        return null;
    }

    private byte[] order(List<Object> frame) throws IOException {
        long round = Pack.number(frame.get(1)), exchange = Pack.number(frame.get(2)), attempt = Pack.number(frame.get(3));
        byte[] body = Pack.bytes(frame.get(4));
        if (!Keys.verify(gateway, statement("order", place, numbers(frame), body), Pack.bytes(frame.get(5))))
            return Pack.array(5, round, exchange, attempt, 2, "the signature of the order is wrong");
        byte[] before = store.answer(round, exchange, attempt);
        if (before != null && !Arrays.equals(Arrays.copyOf(before, 32), Bytes.sha256(body)))
            return Pack.array(5, round, exchange, attempt, 1, "another order under the same number");
        List<Object> given = Pack.list(body, 2), work = Pack.list(Pack.bytes(given.get(0)), 4);
        boolean fits = Pack.number(work.get(0)) == 1 && Pack.number(work.get(1)) == round && Pack.number(work.get(2)) == 0 && exchange == 0;
        byte[] pairs = Pack.bytes(given.get(1));
        if (fits && usable) fold(Pack.list(work.get(3)), pairs);
        if (!fits || !usable || core.round > round)
            return Pack.array(5, round, exchange, attempt, 5, "this device is not ready for the order");
        core.round = round;
        write();
        if (before != null) return answer(frame, Arrays.copyOfRange(before, 96, before.length), Arrays.copyOfRange(before, 32, 96));
        byte[] reply = core.reply(core.plan.rate(pairs, round));
        byte[] signature = signed(statement("answer", place, numbers(frame), Bytes.sha256(body), reply));
        store.keep(round, exchange, attempt, body, signature, reply);
        answered++;
        List<Object> said = Pack.list(reply, 6);
        listener.sent(round, Bytes.floats(Pack.bytes(said.get(3))), Bytes.floats(Pack.bytes(said.get(4)))[0]);
        return answer(frame, reply, signature);
    }

    private static byte[] answer(List<Object> order, byte[] reply, byte[] signature) {
        return Pack.array(4, order.get(1), order.get(2), order.get(3), reply, signature);
    }

    private void fold(List<Object> updates, byte[] pairs) throws IOException {
        for (Object each : updates) {
            List<Object> update = each instanceof byte[] ? Pack.list((byte[]) each, 3) : Pack.list(each);
            if (update.size() < 3 || Pack.number(update.get(0)) != 1) throw new Broken("an update of another kind");
            long round = Pack.number(update.get(1));
            core.fold(round, core.plan.rate(pairs, round), Pack.bytes(update.get(2)));
        }
    }

    private byte[] updates(List<Object> frame) throws IOException {
        byte[] body = Pack.bytes(frame.get(1));
        expect(Pack.bytes(frame.get(2)), "updates", body);
        List<Object> given = Pack.list(body, 4);
        if (Boolean.TRUE.equals(given.get(0))) {
            core.begin();
            usable = core.plan.begins;
        }
        if (!usable) throw new Broken("updates for a device without a model");
        fold(Pack.list(given.get(1)), Pack.bytes(given.get(2)));
        core.round = Math.max(core.round, Pack.number(given.get(3)));
        return nowReady();
    }

    private byte[] nowReady() throws IOException {
        write();
        return Pack.array(6, core.round, core.digest());
    }

    private byte[] offered(List<Object> frame) throws IOException {
        byte[] body = Pack.bytes(frame.get(1));
        expect(Pack.bytes(frame.get(2)), "checkpoint", body);
        List<Object> given = Pack.list(body, 4);
        if (Pack.number(given.get(2)) != core.bytes()) throw new Broken("a checkpoint of another size");
        if (!Arrays.equals(hash, Pack.bytes(given.get(1)))) {
            content = new byte[core.bytes()];
            have = 0;
        }
        checkpoint = Pack.number(given.get(0));
        hash = Pack.bytes(given.get(1));
        digest = Pack.bytes(given.get(3));
        return Pack.array(7, hash, have);
    }

    private byte[] piece(List<Object> frame) throws IOException {
        byte[] data = Pack.bytes(frame.get(2));
        if (hash == null || Pack.number(frame.get(1)) != have) return null;
        if (data.length == 0 || data.length > content.length - have) throw new Broken("a piece of another size");
        System.arraycopy(data, 0, content, have, data.length);
        have += data.length;
        if (have < content.length) return Pack.array(7, hash, have);
        byte[] found = Bytes.sha256(content), wanted = hash;
        hash = null;
        if (!Arrays.equals(found, wanted)) throw new Broken("the checkpoint is not the one that was offered");
        core.load(content, checkpoint);
        usable = Arrays.equals(core.digest(), digest);
        written = -WRITE_EVERY;
        return nowReady();
    }

    /** Write the model now and then; what it lacks after a crash is sent again. */
    private void write() throws IOException {
        if (core.round - written < WRITE_EVERY) return;
        store.put("model", Pack.array(core.round, core.digest(), core.save()));
        written = core.round;
    }

    private byte[] wait(List<Object> frame) throws Broken {
        pause = Pack.number(frame.get(1));
        if (pause > 0) listener.say(Pack.text(frame.get(2)));
        return null;
    }

    private byte[] error(List<Object> frame) throws IOException {
        long code = Pack.number(frame.get(1));
        String text = "the gateway says: " + Pack.text(frame.get(2));
        if (HOPELESS.contains(code)) throw new Hopeless(text);
        if (!LASTING.contains(code)) throw new Broken(text);
        listener.say(text);
        return null;
    }

    private byte[] finish(List<Object> frame) throws IOException {
        String reason = Pack.text(frame.get(2));
        expect(Pack.bytes(frame.get(3)), "finish", Bytes.u64(Pack.number(frame.get(1))), reason.getBytes(StandardCharsets.UTF_8));
        listener.say("the run has ended after " + frame.get(1) + " rounds" + (reason.isEmpty() ? "" : ": " + reason));
        finished = true;
        return null;
    }
}
