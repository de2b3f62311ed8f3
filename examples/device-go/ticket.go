package main

import (
	"encoding/base64"
	"errors"
	"net"
	"net/url"
	"strings"
)

// ticket is an address that admits a device to a run.
type ticket struct {
	gateway     *url.URL // scheme and host
	run         []byte
	name        []byte
	fingerprint []byte
}

func readTicket(address string) (*ticket, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	data, err := base64.RawURLEncoding.DecodeString(at.Fragment)
	if err != nil || len(data) != 49 || data[0] != 1 || strings.TrimRight(at.Path, "/") != "/join" {
		return nil, errors.New("this address is no ticket")
	}
	gateway := &url.URL{Scheme: at.Scheme, Host: at.Host}
	if err := checkGateway(gateway); err != nil {
		return nil, err
	}
	return &ticket{gateway, data[1:17], data[17:33], data[33:49]}, nil
}

// checkGateway refuses plain http to other machines.
func checkGateway(at *url.URL) error {
	host := at.Hostname()
	address := net.ParseIP(host)
	local := host == "localhost" || address != nil && address.IsLoopback()
	if host == "" || at.Scheme != "https" && !(at.Scheme == "http" && local) {
		return errors.New("a gateway has an https address; plain http is for the same machine")
	}
	return nil
}
