package switches

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// verbs runs "verbs" with --json, and decodes what it prints.
func verbs(t *testing.T, rows any, line ...string) {
	t.Helper()
	decode(t, []byte(run(t, append(append([]string{os.Getenv("VERBS")}, line...), "--json")...)), rows)
}

// decode decodes JSON.
func decode(t *testing.T, text []byte, rows any) {
	t.Helper()
	if err := json.Unmarshal(text, rows); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

// do gives the test bench of the first card commands.
func do(t *testing.T, commands ...string) {
	t.Helper()
	b, err := testenv.OpenCard("mlx5_0")
	must(t, err)
	defer b.Close()
	for _, c := range commands {
		if _, err := b.Do("%s", c); err != nil {
			t.Fatal(err)
		}
	}
}

// portFile returns a sysfs file of the second card's port.
func portFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/mlx5_1/ports/1/" + name)
	must(t, err)
	return strings.TrimSpace(string(b))
}

// becomes waits until a sysfs file of the second card's port has a value.
func becomes(t *testing.T, name, want string) {
	t.Helper()
	for end := time.Now().Add(program.Patience); portFile(t, name) != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is %q, want %q", name, portFile(t, name), want)
		}
	}
}

// TestSlowCable: "verbs ib status" shows on the card the width and speed that "verbs ib links" shows
// at the switch, also those of a cable that allows less than both ends.
func TestSlowCable(t *testing.T) {
	subnetOf(t)
	t.Cleanup(func() {
		if t.Failed() {
			do(t, "subnet-rate card1 1 any any")
		}
	})
	for _, c := range []struct {
		cable, sysfs string
		width        int
		speed        string
		gbps         float64
		could        string
	}{
		{"1x QDR", "10 Gb/sec (1X QDR)", 1, "QDR", 10, "EDR"},
		{"4x FDR", "56 Gb/sec (4X FDR)", 4, "FDR", 56.25, "EDR"},
		{"any any", "100 Gb/sec (4X EDR)", 4, "EDR", 103.125, ""},
	} {
		do(t, "subnet-rate card1 1 "+c.cable)
		becomes(t, "rate", c.sysfs)
		becomes(t, "state", "4: ACTIVE")
		var cards []struct {
			Ports []struct {
				Rate  float64 `json:"rate_gbps"`
				Width int     `json:"width"`
				Speed string  `json:"speed"`
			} `json:"ports"`
		}
		verbs(t, &cards, "ib", "status", "mlx5_1")
		if len(cards) != 1 || len(cards[0].Ports) != 1 {
			t.Fatalf("with a cable for %s, the card is %+v", c.cable, cards)
		}
		p := cards[0].Ports[0]
		if got := fmt.Sprintf("%g Gb/sec (%dX %s)", p.Rate, p.Width, p.Speed); got != c.sysfs {
			t.Errorf("with a cable for %s, the card has %s, want %s", c.cable, got, c.sysfs)
		}
		var links []struct {
			Node       string  `json:"node"`
			Rate       float64 `json:"rate_gbps"`
			Width      int     `json:"width"`
			Speed      string  `json:"speed"`
			CouldSpeed string  `json:"could_speed"`
			Peer       struct{ Node string }
		}
		verbs(t, &links, "ib", "links", "-d", "mlx5_0")
		found := 0
		for _, l := range links {
			if l.Node != "card1" && l.Peer.Node != "card1" {
				continue
			}
			if found++; l.Width != c.width || l.Speed != c.speed || l.Rate != c.gbps || l.CouldSpeed != c.could {
				t.Errorf("with a cable for %s, the link is %+v", c.cable, l)
			}
		}
		if found == 0 {
			t.Errorf("the link is not in %+v", links)
		}
	}
}

// watched starts "verbs events", and waits until it is told of the events of both cards. It returns a
// function that counts how often an event of the second card was printed, and one that waits until it was
// printed a number of times.
func watched(t *testing.T) (count func(event string) int, seen func(event string, times int)) {
	t.Helper()
	w := program.Launch(t, os.Getenv("VERBS"), "events", "--json")
	w.KeepRunning()
	w.Until(t, "watches both cards", func() bool {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.PID()))
		n := 0
		for _, f := range files {
			if to, _ := os.Readlink(f); strings.Contains(to, "infinibandevent") {
				n++
			}
		}
		return err == nil && n == 2
	})
	count = func(event string) (n int) {
		for line := range strings.Lines(w.Output()) {
			var e struct {
				Event, Device string
				Port          int
			}
			if json.Unmarshal([]byte(line), &e) == nil && e.Event == event && e.Device == "mlx5_1" && e.Port == 1 {
				n++
			}
		}
		return n
	}
	return count, func(event string, times int) {
		t.Helper()
		w.Until(t, fmt.Sprintf("prints %d times %s", times, event), func() bool { return count(event) >= times })
	}
}

// TestEvents: "verbs events" reports the events of a port: its LID changes, its cable is pulled and put
// in again, and opensm brings it up. Until opensm has ended the sweeps of the test before, it may set
// the LID back at once, so the LID is set until the event is seen.
func TestEvents(t *testing.T) {
	subnetOf(t)
	count, seen := watched(t)
	lid := lids(t)["card1"]
	for end := time.Now().Add(program.Patience); count("LID_CHANGE") == 0; time.Sleep(50 * time.Millisecond) {
		// The card does not answer if it has LID 99 already.
		out, err := exec.Command("ibportstate", "-C", "mlx5_0", lid, "1", "lid", "99").CombinedOutput()
		if time.Now().After(end) {
			t.Fatalf("verbs events does not print LID_CHANGE; ibportstate: %v\n%s", err, out)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			do(t, "subnet-link card1 1 up")
		}
	})
	do(t, "subnet-link card1 1 down")
	becomes(t, "state", "1: DOWN")
	seen("PORT_ERR", 1)
	for end := time.Now().Add(program.Patience); lids(t)["card1"] != ""; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("opensm still knows the card without a cable")
		}
	}
	do(t, "subnet-link card1 1 up")
	becomes(t, "state", "4: ACTIVE")
	seen("PORT_ERR", 2) // the link is up, but the port is not active yet
	seen("CLIENT_REREGISTER", 1)
	seen("LID_CHANGE", 2) // back to the one that opensm gives
	seen("PORT_ACTIVE", 1)
	if got := lids(t)["card1"]; got != lid {
		t.Errorf("the LID is %s, want %s", got, lid)
	}
}

// requests returns how many requests to read and to write memory a card has received.
func requests(t *testing.T, card string) (reads, writes int) {
	t.Helper()
	var rows []struct {
		Counters []struct {
			Name  string
			Value int
		}
	}
	verbs(t, &rows, "stat", card)
	if len(rows) != 1 {
		t.Fatalf("verbs stat %s prints %+v", card, rows)
	}
	for _, c := range rows[0].Counters {
		switch c.Name {
		case "rx_read_requests":
			reads = c.Value
		case "rx_write_requests":
			writes = c.Value
		}
	}
	return reads, writes
}

// TestStat: "verbs stat" shows the requests that cards on a subnet of switches have received. The
// client of rping lets the server read and write its memory once in each round.
func TestStat(t *testing.T) {
	subnetOf(t)
	const rounds = 5
	reads, writes := requests(t, "mlx5_0")
	far, farWrites := requests(t, "mlx5_1")
	rping(t, rounds)
	if r, w := requests(t, "mlx5_0"); r-reads != rounds || w-writes != rounds {
		t.Errorf("the client's card has received %d requests to read and %d to write, want %d", r-reads, w-writes, rounds)
	}
	if r, w := requests(t, "mlx5_1"); r != far || w != farWrites {
		t.Errorf("the server's card has received %d requests to read and %d to write, want none", r-far, w-farWrites)
	}
}
