package fedzero.device;

import java.io.IOException;
import java.math.BigInteger;
import java.security.AlgorithmParameters;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.interfaces.ECPublicKey;
import java.security.spec.ECGenParameterSpec;
import java.security.spec.ECParameterSpec;
import java.security.spec.ECPoint;
import java.security.spec.ECPublicKeySpec;
import java.security.spec.PKCS8EncodedKeySpec;
import java.security.spec.X509EncodedKeySpec;
import java.util.Arrays;

/**
 * ECDSA on P-256 with SHA-256, algorithm 2 of the protocol: what the key store of a phone has in hardware. Java signs in
 * DER; the protocol has r ‖ s of 32 bytes each.
 */
final class Keys {
    static final int ALGORITHM = 2;

    private final PrivateKey secret;
    final byte[] point;

    Keys(PrivateKey secret, PublicKey key) {
        this.secret = secret;
        ECPoint w = ((ECPublicKey) key).getW();
        point = Bytes.joined(new byte[] {4}, fixed(w.getAffineX()), fixed(w.getAffineY()));
    }

    /** From two files; made if there are none. On Android the key store makes them: README.md. */
    static Keys in(Store store) throws IOException, GeneralSecurityException {
        byte[] secret = store.get("secret"), key = store.get("public");
        if (secret == null || key == null) {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
            generator.initialize(new ECGenParameterSpec("secp256r1"));
            KeyPair made = generator.generateKeyPair();
            store.put("public", made.getPublic().getEncoded());
            store.put("secret", made.getPrivate().getEncoded());
            return new Keys(made.getPrivate(), made.getPublic());
        }
        KeyFactory factory = KeyFactory.getInstance("EC");
        return new Keys(factory.generatePrivate(new PKCS8EncodedKeySpec(secret)),
                factory.generatePublic(new X509EncodedKeySpec(key)));
    }

    byte[] sign(byte[] message) throws GeneralSecurityException {
        Signature signer = Signature.getInstance("SHA256withECDSA");
        signer.initSign(secret);
        signer.update(message);
        return fixedPair(signer.sign());
    }

    /** Whether a signature is one of this point; false for whatever is no signature. */
    static boolean verify(byte[] point, byte[] message, byte[] signature) {
        if (point.length != 65 || point[0] != 4 || signature.length != 64) return false;
        try {
            AlgorithmParameters curve = AlgorithmParameters.getInstance("EC");
            curve.init(new ECGenParameterSpec("secp256r1"));
            ECPoint w = new ECPoint(new BigInteger(1, Arrays.copyOfRange(point, 1, 33)),
                    new BigInteger(1, Arrays.copyOfRange(point, 33, 65)));
            Signature verifier = Signature.getInstance("SHA256withECDSA");
            verifier.initVerify(KeyFactory.getInstance("EC").generatePublic(
                    new ECPublicKeySpec(w, curve.getParameterSpec(ECParameterSpec.class))));
            verifier.update(message);
            return verifier.verify(der(signature));
        } catch (GeneralSecurityException | IllegalArgumentException error) {
            return false;
        }
    }

    private static byte[] fixed(BigInteger value) {
        byte[] given = value.toByteArray(), found = new byte[32];
        int count = Math.min(32, given.length);
        System.arraycopy(given, given.length - count, found, 32 - count, count);
        return found;
    }

    /** SEQUENCE { INTEGER r, INTEGER s }, whose lengths are below 128. */
    private static byte[] fixedPair(byte[] der) {
        int first = der[3], second = der[5 + first];
        BigInteger r = new BigInteger(Arrays.copyOfRange(der, 4, 4 + first));
        BigInteger s = new BigInteger(Arrays.copyOfRange(der, 6 + first, 6 + first + second));
        return Bytes.joined(fixed(r), fixed(s));
    }

    private static byte[] der(byte[] pair) {
        byte[] r = new BigInteger(1, Arrays.copyOfRange(pair, 0, 32)).toByteArray();
        byte[] s = new BigInteger(1, Arrays.copyOfRange(pair, 32, 64)).toByteArray();
        byte[] sequence = {0x30, (byte) (4 + r.length + s.length), 2, (byte) r.length};
        return Bytes.joined(sequence, r, new byte[] {2, (byte) s.length}, s);
    }
}
