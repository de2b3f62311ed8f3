package fedzero.device;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Rows of a CSV file without a head: numbers, then the label, by number or by one of the plan's names. */
final class Rows {
    private final List<float[]> x = new ArrayList<>();
    private final List<String> y = new ArrayList<>();

    Rows(File file) throws IOException {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(file), StandardCharsets.UTF_8))) {
            for (String line; (line = in.readLine()) != null; ) if (!line.trim().isEmpty()) add(line.split(","));
        }
    }

    private void add(String[] cells) throws Hopeless {
        float[] row = new float[cells.length - 1];
        try {
            for (int i = 0; i < row.length; i++) row[i] = Float.parseFloat(cells[i].trim());
        } catch (NumberFormatException error) {
            throw new Hopeless("row " + (x.size() + 1) + ": " + error.getMessage());
        }
        x.add(row);
        y.add(cells[row.length].trim());
    }

    /** Row after row as the model reads them: (x − mean) / deviation. */
    float[] inputs(Plan plan) throws Hopeless {
        int width = plan.widths[0];
        if (x.size() < Math.max(1, plan.leastRows))
            throw new Hopeless(x.size() + " rows, and the run asks for " + plan.leastRows + " at least");
        if ((long) x.size() * width > 1 << 28) throw new Hopeless(x.size() + " rows are more than this client takes");
        float[] found = new float[x.size() * width];
        for (int row = 0; row < x.size(); row++) {
            float[] given = x.get(row);
            if (given.length != width) throw new Hopeless("row " + (row + 1) + " has " + given.length + " numbers, not " + width);
            for (int i = 0; i < width; i++) {
                float mean = plan.mean[plan.mean.length == 1 ? 0 : i], deviation = plan.deviation[plan.deviation.length == 1 ? 0 : i];
                float value = (given[i] - mean) / deviation;
                if (Float.isNaN(value) || Float.isInfinite(value)) throw new Hopeless("row " + (row + 1) + ": not a finite number");
                found[row * width + i] = value;
            }
        }
        return found;
    }

    byte[] labels(Plan plan) throws Hopeless {
        byte[] found = new byte[y.size()];
        int count = plan.widths[plan.widths.length - 1];
        for (int row = 0; row < found.length; row++) {
            int label = plan.labels.indexOf(y.get(row));
            if (label < 0) {
                try {
                    label = (int) Float.parseFloat(y.get(row));
                } catch (NumberFormatException error) {
                    label = -1;
                }
            }
            if (label < 0 || label >= count) throw new Hopeless("row " + (row + 1) + ": '" + y.get(row) + "' is no label of the run");
            found[row] = (byte) label;
        }
        return found;
    }
}
