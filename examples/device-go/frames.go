package main

// Tags of frames.
const (
	tagEnrol      = 1
	tagHello      = 2
	tagProof      = 3
	tagAnswer     = 4
	tagRefusal    = 5
	tagReady      = 6
	tagFetch      = 7
	tagBeat       = 8
	tagLeave      = 9
	tagEnrolled   = 16
	tagChallenge  = 17
	tagWelcome    = 18
	tagOrder      = 19
	tagUpdates    = 20
	tagCheckpoint = 21
	tagPiece      = 22
	tagWait       = 23
	tagError      = 24
	tagFinish     = 25
)

const protocolVersion = 1

// orderNumber says which order it is.
type orderNumber struct {
	round             uint64
	exchange, attempt uint32
}

func (u *unpacker) orderNumber() orderNumber {
	return orderNumber{u.nat(), u.nat32(), u.nat32()}
}

func (o orderNumber) put(b []byte) []byte {
	return putNat(putNat(putNat(b, o.round), uint64(o.exchange)), uint64(o.attempt))
}

// frame begins a frame of a tag with n fields.
func frame(tag uint64, n int) []byte {
	return putNat(putArray(nil, n+1), tag)
}

func enrolFrame(t *ticket, key, signature []byte) []byte {
	b := putNat(frame(tagEnrol, 5), protocolVersion)
	b = putNat(putBytes(b, t.name), ed25519Algorithm)
	return putBytes(putBytes(b, key), signature)
}

// helloFrame has the round of a model, or nil.
func helloFrame(i *identity, nonce, planSum []byte, s *model) []byte {
	b := putNat(frame(tagHello, 6), protocolVersion)
	b = putNat(putBytes(b, i.run), uint64(i.place))
	b = putBytes(putBytes(b, nonce), planSum)
	if s == nil || s.x == nil {
		return putNil(b)
	}
	return putNat(b, s.ready)
}

func proofFrame(signature []byte) []byte { return putBytes(frame(tagProof, 1), signature) }

func answerFrame(o orderNumber, body, signature []byte) []byte {
	return putBytes(putBytes(o.put(frame(tagAnswer, 5)), body), signature)
}

func refusalFrame(o orderNumber, code uint64, text string) []byte {
	return putText(putNat(o.put(frame(tagRefusal, 5)), code), text)
}

func readyFrame(s *model) []byte {
	return putBytes(putNat(frame(tagReady, 2), s.ready), s.digest())
}

func fetchFrame(sum []byte, offset uint64) []byte {
	return putNat(putBytes(frame(tagFetch, 2), sum), offset)
}

func beatFrame() []byte { return frame(tagBeat, 0) }

func leaveFrame() []byte { return frame(tagLeave, 0) }

// replyBody is the body of an Answer.
func replyBody(round uint64, digest []byte, v values) []byte {
	b := putNat(putNat(putArray(nil, 6), round), 0)
	b = putBytes(b, digest)
	b = putBytes(b, packFloats(v.g))
	b = putBytes(b, packFloats([]float32{float32(v.loss)}))
	return putNat(b, v.queries)
}

// open reads the tag and the fields of a frame.
func open(data []byte, tag uint64, n int, read func(u *unpacker)) error {
	u := &unpacker{b: data}
	u.fields(n+1, func() {
		if u.nat() != tag {
			u.fail()
		}
		read(u)
	})
	return u.end()
}

// tagOf is the tag of a frame.
func tagOf(data []byte) (uint64, error) {
	u := &unpacker{b: data}
	u.array()
	tag := u.nat()
	return tag, u.bad
}
