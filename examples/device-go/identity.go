package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/url"
)

// identity is who a device is: what has to be on disk before Hello.
type identity struct {
	key     ed25519.PrivateKey
	at      *url.URL
	run     []byte
	place   uint32
	gateway ed25519.PublicKey // empty: the device has no place yet
}

// identityFile is an identity as it lies on disk.
type identityFile struct {
	Gateway string // address
	Run     []byte
	Place   uint32
	Secret  []byte
	Key     []byte // of the gateway
}

func (i *identity) public() []byte { return i.key.Public().(ed25519.PublicKey) }

func (i *identity) enrolled() bool { return len(i.gateway) > 0 }

// restore returns nil if the folder has no identity.
func (f folder) restore() (*identity, error) {
	data, err := f.read("identity.json")
	if data == nil || err != nil {
		return nil, err
	}
	var file identityFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	at, err := url.Parse(file.Gateway)
	if err != nil {
		return nil, err
	}
	if len(file.Secret) != ed25519.SeedSize || len(file.Run) != 16 ||
		len(file.Key) != 0 && len(file.Key) != ed25519.PublicKeySize {
		return nil, errors.New("identity.json is damaged")
	}
	return &identity{ed25519.NewKeyFromSeed(file.Secret), at, file.Run, file.Place, file.Key}, nil
}

func (f folder) keep(i *identity) error {
	data, err := json.MarshalIndent(identityFile{i.at.String(), i.run, i.place, i.key.Seed(), i.gateway}, "", " ")
	if err != nil {
		return err
	}
	return f.write("identity.json", append(data, '\n'))
}
