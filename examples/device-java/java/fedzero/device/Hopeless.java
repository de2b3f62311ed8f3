package fedzero.device;

import java.io.IOException;

/** Another attempt would end in the same way. */
final class Hopeless extends IOException {
    private static final long serialVersionUID = 1;

    Hopeless(String why) {
        super(why);
    }
}
