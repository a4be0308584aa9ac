// A FerretDB for the tests of the MongoDB connector: `ferretdb 127.0.0.1:0 FOLDER` serves what is in the folder until
// its standard input ends. Its first line is its URL.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("ferretdb ADDRESS FOLDER")
	}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: os.Args[1]},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handler:   "sqlite",
		SQLiteURL: "file:" + os.Args[2] + "/",
	})
	if err != nil {
		log.Fatal(err)
	}
	running, end := context.WithCancel(context.Background())
	go func() {
		fmt.Println(server.MongoDBURI())
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
	if err = server.Run(running); err != nil {
		log.Fatal(err)
	}
}
