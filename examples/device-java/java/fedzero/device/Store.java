package fedzero.device;

import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.Arrays;

/** What must outlast the process: one file for each fact, on disk before `put` returns. */
final class Store {
    private static final int KEPT = 64;

    private final File folder;

    Store(File folder) throws IOException {
        this.folder = folder;
        File answers = new File(folder, "answers");
        if (!answers.isDirectory() && !answers.mkdirs()) throw new IOException("cannot make the folder " + folder);
        folder.setReadable(false, false);
        folder.setReadable(true, true);
        folder.setExecutable(false, false);
        folder.setExecutable(true, true);
    }

    byte[] get(String name) throws IOException {
        File file = new File(folder, name);
        if (!file.exists()) return null;
        byte[] found = new byte[(int) file.length()];
        try (FileInputStream in = new FileInputStream(file)) {
            for (int at = 0, more; at < found.length; at += more) {
                more = in.read(found, at, found.length - at);
                if (more < 0) throw new IOException(file + " is cut short");
            }
        }
        return found;
    }

    void put(String name, byte[] value) throws IOException {
        File file = new File(folder, name), draft = new File(folder, "draft");
        try (FileOutputStream out = new FileOutputStream(draft)) {
            out.write(value);
            out.getFD().sync();
        }
        if (!draft.renameTo(file)) throw new IOException("cannot write " + file);
    }

    /** SHA-256 of the order, signature, body; null: the order was not answered. */
    byte[] answer(long round, long exchange, long attempt) throws IOException {
        return get(named(round, exchange, attempt));
    }

    void keep(long round, long exchange, long attempt, byte[] order, byte[] signature, byte[] body) throws IOException {
        put(named(round, exchange, attempt), Bytes.joined(Bytes.sha256(order), signature, body));
        String[] names = new File(folder, "answers").list();
        if (names == null || names.length <= KEPT) return;
        Arrays.sort(names); // rounds have the same number of digits
        for (int i = 0; i < names.length - KEPT; i++) new File(new File(folder, "answers"), names[i]).delete();
    }

    private static String named(long round, long exchange, long attempt) {
        return String.format(java.util.Locale.ROOT, "answers/%019d-%d-%d", round, exchange, attempt);
    }
}
