package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// The examples in bytes are those of the page.
const pagePath = "../../docs/device-protocol.md"

func examples(t *testing.T) map[string][]byte {
	t.Helper()
	page, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "## Examples in bytes")
	if !found {
		t.Fatal("the page has no examples")
	}
	_, after, _ = strings.Cut(after, "```text\n")
	block, _, _ := strings.Cut(after, "```")
	list := make(map[string][]byte)
	name := ""
	for _, line := range strings.Split(block, "\n") {
		if !strings.HasPrefix(line, " ") {
			name, _, _ = strings.Cut(line, ",")
			continue
		}
		data, err := hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		list[name] = append(list[name], data...)
	}
	return list
}

// exampleIdentity has the secret 00 01 … 1f, and so has the gateway.
func exampleIdentity() *identity {
	seed := make([]byte, 32)
	for i := range seed {
		seed[i] = byte(i)
	}
	key := ed25519.NewKeyFromSeed(seed)
	return &identity{key: key, run: make([]byte, 16), place: 2, gateway: key.Public().(ed25519.PublicKey)}
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(want) == 0 || !bytes.Equal(got, want) {
		t.Errorf("%s: %x, not %x", what, got, want)
	}
}

func TestExamplesOfADevice(t *testing.T) {
	e, who := examples(t), exampleIdentity()
	same(t, "key", who.public(), e["a public key"])
	same(t, "Hello", helloFrame(who, make([]byte, 16), nil, nil), e["Hello"])
	payload := [][]byte{make([]byte, 32), make([]byte, 16), bytes.Repeat([]byte{255}, 8)}
	same(t, "what Proof signs", signed("proof", who.run, who.place, payload...), e["what Proof signs"])
	same(t, "Proof", proofFrame(who.sign("proof", payload...)), e["Proof"])

	number := orderNumber{round: 1}
	body := replyBody(1, make([]byte, 8), values{[]float32{0.5, -0.25}, 0.5, 3})
	same(t, "body", body, e["the body of an Answer"])
	sum := sha256.Sum256(e["the body of an Order"])
	message := signed("answer", who.run, who.place, number.number(), sum[:], body)
	same(t, "what Answer signs", message, e["what Answer signs"])
	signature := who.sign("answer", number.number(), sum[:], body)
	same(t, "Answer", answerFrame(number, body, signature), e["Answer"])
}

func TestExamplesOfAGateway(t *testing.T) {
	e, who := examples(t), exampleIdentity()
	p, err := readPlan(e["a plan"])
	if err != nil {
		t.Fatal(err)
	}
	if p.name != "tiny" || p.rounds != 9 || p.method.radius != 0.125 || p.task.labels[1] != "yes" || p.task.leastRows != 4 {
		t.Errorf("another plan: %+v", p)
	}
	sum := sha256.Sum256(e["a plan"])
	same(t, "SHA-256 of the plan", sum[:], e["SHA-256 of the plan"])

	var number orderNumber
	var body, signature []byte
	err = open(e["Order"], tagOrder, 5, func(u *unpacker) {
		number, body, signature = u.orderNumber(), u.bytes(), u.fixed(64)
	})
	if err != nil || number.round != 1 || !who.verify(signature, "order", number.number(), body) {
		t.Errorf("another order: %v %v", number, err)
	}
	d := &device{plan: p, who: who, model: newModel(p)}
	if err := d.model.begin(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.fold(1, body); err != nil || d.model.ready != 1 {
		t.Errorf("the order is not followed: %v", err)
	}
	if err := d.ending(e["Error"], tagError); err != nil {
		t.Errorf("an error of code 9 ends the session: %v", err)
	}
}

func TestFramesThatAreCutOff(t *testing.T) {
	for name, data := range examples(t) {
		for n := range data {
			u := &unpacker{b: data[:n]}
			u.skip(16)
			if name == "Order" && u.end() == nil {
				t.Errorf("%d of %d bytes are a frame", n, len(data))
			}
			if _, err := readPlan(data[:n]); err == nil {
				t.Errorf("%d bytes of %s are a plan", n, name)
			}
		}
	}
}
