// What goes wrong, in a sentence.

// Nothing can go on: bad data, a bad ticket, a gateway that is not who it should be.
export class Hopeless extends Error {}

// The connection broke, or the gateway said something odd: try again.
export class Broken extends Error {}
