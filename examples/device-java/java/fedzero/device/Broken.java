package fedzero.device;

import java.io.IOException;

/** The connection or what came over it is of no use; another attempt may be. */
final class Broken extends IOException {
    private static final long serialVersionUID = 1;

    Broken(String why) {
        super(why);
    }
}
