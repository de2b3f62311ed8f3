// Command device takes part in a run of fedzero devices: fedzero-device/1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	data := flag.String("data", "", "CSV file of rows, the label last")
	folder := flag.String("folder", "device", "folder of this device: key, place, model")
	socket := flag.Bool("socket", false, "web socket instead of polling")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: %s [options] [TICKET]\n", os.Args[0])
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 1 || *data == "" {
		flag.Usage()
		os.Exit(2)
	}
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, err := newDevice(*folder, flag.Arg(0), *data, *socket)
	if err == nil {
		err = d.run(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}
