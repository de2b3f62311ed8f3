package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// polling is the transport of requests and responses.
type polling struct {
	at      string
	client  *http.Client
	out, in [][]byte
	results chan result

	lock    sync.Mutex // of what follows
	session string
	flying  int // requests under way
}

// result is what came of a request.
type result struct {
	frames [][]byte
	err    error
}

// mostFrames are in a request.
const mostFrames = 8

func newPolling(gateway *url.URL) *polling {
	return &polling{
		at:      gateway.String() + "/fedzero/1/poll",
		client:  &http.Client{Timeout: 5 * time.Minute},
		results: make(chan result, 64),
	}
}

// send lets a frame wait for the next request.
func (p *polling) send(frame []byte) error {
	p.out = append(p.out, frame)
	return nil
}

func (p *polling) waiting() bool { return len(p.in) > 0 }

// receive asks until there is a frame.
func (p *polling) receive(ctx context.Context) ([]byte, error) {
	for len(p.in) == 0 {
		p.ask(ctx)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case got := <-p.results:
			if got.err != nil {
				return nil, got.err
			}
			p.in = append(p.in, got.frames...)
		}
	}
	next := p.in[0]
	p.in = p.in[1:]
	return next, nil
}

// ask begins a request if there is something to send, or none is under way.
func (p *polling) ask(ctx context.Context) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if len(p.out) == 0 && p.flying > 0 {
		return
	}
	count := len(p.out)
	if count > mostFrames {
		count = mostFrames
	}
	p.begin(ctx, p.out[:count])
	p.out = p.out[count:]
}

func (p *polling) begin(ctx context.Context, frames [][]byte) {
	p.flying++
	session := p.session
	go func() {
		got, err := p.post(ctx, session, frames)
		p.lock.Lock()
		p.flying--
		p.lock.Unlock()
		p.results <- result{got, err}
	}()
}

// alive asks every beat until it is stopped: a device that computes for long
// is not gone.
func (p *polling) alive(ctx context.Context, beat time.Duration) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(beat):
				p.lock.Lock()
				if p.flying == 0 {
					p.begin(ctx, nil)
				}
				p.lock.Unlock()
			}
		}
	}()
	return func() { close(done) }
}

// close sends what is left, such as Leave, and waits for no answer.
func (p *polling) close() {
	if len(p.out) > 0 && p.session != "" {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = p.post(ctx, p.session, p.out)
	}
	p.client.CloseIdleConnections()
}

func (p *polling) post(ctx context.Context, session string, frames [][]byte) ([][]byte, error) {
	var body []byte
	for _, frame := range frames {
		body = binary.LittleEndian.AppendUint32(body, uint32(len(frame)))
		body = append(body, frame...)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	if session != "" {
		request.Header.Set("fedzero-session", session)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, largest))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the gateway answers with status %s", response.Status)
	}
	if name := response.Header.Get("fedzero-session"); name != "" {
		p.lock.Lock()
		p.session = name
		p.lock.Unlock()
	}
	return split(data)
}

// split takes the frames of a body apart.
func split(data []byte) (frames [][]byte, err error) {
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, errFrame
		}
		length := binary.LittleEndian.Uint32(data)
		data = data[4:]
		if uint64(length) > uint64(len(data)) {
			return nil, errFrame
		}
		frames = append(frames, data[:length])
		data = data[length:]
	}
	return frames, nil
}
