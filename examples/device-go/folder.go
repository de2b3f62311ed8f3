package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// folder is where a device keeps what it must not lose.
type folder string

func openFolder(path string) (folder, error) {
	return folder(path), os.MkdirAll(path, 0o700)
}

// read returns nil if there is no such file.
func (f folder) read(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(string(f), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// write replaces a file. It is on disk, whole, when write returns.
func (f folder) write(name string, data []byte) error {
	path := filepath.Join(string(f), name)
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = f.sync()
	}
	return err
}

// add appends to a file.
func (f folder) add(name string, data []byte) error {
	file, err := os.OpenFile(filepath.Join(string(f), name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

func (f folder) remove(name string) error {
	err := os.Remove(filepath.Join(string(f), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sync makes the names in the folder durable.
func (f folder) sync() error {
	directory, err := os.Open(string(f))
	if err != nil {
		return err
	}
	defer directory.Close()
	return directory.Sync()
}
