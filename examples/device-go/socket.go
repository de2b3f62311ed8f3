package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// webSocket is the transport of RFC 6455: each binary message is one frame.
type webSocket struct {
	conn   net.Conn
	reader *bufio.Reader
	lock   sync.Mutex // of writing
	in     chan []byte
	failed chan error
	closed chan struct{}
}

const socketPath = "/fedzero/1/socket"

func dialSocket(ctx context.Context, gateway *url.URL) (transport, error) {
	conn, err := dial(ctx, gateway)
	if err != nil {
		return nil, err
	}
	s := &webSocket{
		conn: conn, reader: bufio.NewReader(conn),
		in: make(chan []byte, 64), failed: make(chan error, 1), closed: make(chan struct{}),
	}
	if err := s.upgrade(gateway); err != nil {
		conn.Close()
		return nil, err
	}
	go func() { s.failed <- s.pump() }()
	return s, nil
}

func dial(ctx context.Context, gateway *url.URL) (net.Conn, error) {
	host, port := gateway.Hostname(), gateway.Port()
	if gateway.Scheme == "https" {
		if port == "" {
			port = "443"
		}
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}}
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if port == "" {
		port = "80"
	}
	dialer := &net.Dialer{Timeout: 20 * time.Second}
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
}

// upgrade makes a connection of HTTP a web socket.
func (s *webSocket) upgrade(gateway *url.URL) error {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	key := base64.StdEncoding.EncodeToString(nonce)
	request, err := http.NewRequest(http.MethodGet, gateway.String()+socketPath, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Upgrade", "websocket")
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Sec-WebSocket-Version", "13")
	request.Header.Set("Sec-WebSocket-Key", key)
	if err := s.conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if err := request.Write(s.conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(s.reader, request)
	if err != nil {
		return err
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if response.StatusCode != http.StatusSwitchingProtocols ||
		response.Header.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]) {
		return fmt.Errorf("no web socket: status %s", response.Status)
	}
	return s.conn.SetDeadline(time.Time{})
}

func (s *webSocket) send(frame []byte) error { return s.write(opBinary, frame) }

func (s *webSocket) waiting() bool { return len(s.in) > 0 }

func (s *webSocket) receive(ctx context.Context) ([]byte, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case frame := <-s.in:
		return frame, nil
	case err := <-s.failed:
		select {
		case frame := <-s.in: // one that came before the connection ended
			s.failed <- err
			return frame, nil
		default:
			return nil, err
		}
	}
}

// alive has nothing to do: pump answers pings.
func (s *webSocket) alive(context.Context, time.Duration) func() { return func() {} }

func (s *webSocket) close() {
	close(s.closed)
	_ = s.write(opClose, nil)
	s.conn.Close()
}
