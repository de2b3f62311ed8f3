// A ticket: 01 ‖ run (16) ‖ ticket (16) ‖ fingerprint (16) as base64url behind the # of the address.
import { hex } from './packing.js';

// The parts of a ticket, or null if the text is none.
export function readTicket(text) {
  if (!/^[\w-]{66}$/.test(text)) return null;
  const bytes = Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));
  if (bytes.length !== 49 || bytes[0] !== 1) return null;
  const run = bytes.slice(1, 17);
  return { run, name: hex(run), secret: bytes.slice(17, 33), fingerprint: bytes.slice(33) };
}
