// Keys of a device, which no script can read: Ed25519 (1) where the browser makes and stores it, else ECDSA on P-256 (2).
import { Hopeless } from './errors.js';

const KINDS = { 1: { name: 'Ed25519' }, 2: { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } };

export const NAMES = { 1: 'Ed25519', 2: 'ECDSA P-256' };

export const sha256 = async (data) => new Uint8Array(await crypto.subtle.digest('SHA-256', data));

// A key that was stored, read again and has signed. keep: stores a value and returns what is stored then.
export async function madeKey(keep) {
  for (const algorithm of [1, 2]) {
    try {
      const pair = await crypto.subtle.generateKey(KINDS[algorithm], false, ['sign', 'verify']);
      const publicKey = new Uint8Array(await crypto.subtle.exportKey('raw', pair.publicKey));
      const key = await keep({ algorithm, publicKey, privateKey: pair.privateKey });
      await sign(key, publicKey);
      return key;
    } catch {
      // the next one
    }
  }
  throw new Hopeless('This browser does not store keys for this page. In a private window it may not: use another window.');
}

export async function sign({ algorithm, privateKey }, message) {
  return new Uint8Array(await crypto.subtle.sign(KINDS[algorithm], privateKey, message));
}

export async function verify(algorithm, publicKey, message, signature) {
  try {
    const key = await crypto.subtle.importKey('raw', publicKey, KINDS[algorithm], false, ['verify']);
    return await crypto.subtle.verify(KINDS[algorithm], key, signature, message);
  } catch {
    return false;
  }
}
