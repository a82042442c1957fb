// Command etcdlock acquires and releases etcd's lock, as the recipe in its client library
// implements it (client/v3/concurrency), for the comparison in crates/bench/src/peers.rs, which
// describes the requests that it reads from standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "etcdlock:", err)
		os.Exit(1)
	}
}

func serve() error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("LOCKER_URL")}})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	mutex := concurrency.NewMutex(session, os.Getenv("LOCKER_LOCK"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := answer(mutex, lines.Text())
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return lines.Err()
}

func answer(mutex *concurrency.Mutex, request string) (int64, error) {
	background := context.Background()
	switch request {
	case "create":
		return 0, nil
	case "acquire":
		err := mutex.Lock(background)
		return time.Now().UnixNano(), err
	case "release":
		begun := time.Now().UnixNano()
		return begun, mutex.Unlock(background)
	}
	var millis int64
	if _, err := fmt.Sscanf(request, "run %d", &millis); err != nil {
		return 0, fmt.Errorf("unknown request %q", request)
	}
	var cycles int64
	for end := time.Now().Add(time.Duration(millis) * time.Millisecond); time.Now().Before(end); cycles++ {
		if err := mutex.Lock(background); err != nil {
			return 0, err
		}
		if err := mutex.Unlock(background); err != nil {
			return 0, err
		}
	}
	return cycles, nil
}
