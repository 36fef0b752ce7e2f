package main

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	keySize   = 32
	keyDigits = 10 // of a number
	maxKeys   = 10_000_000_000
)

// keyBuf is a key: a decimal number, padded with zeros.
type keyBuf [keySize]byte

func newKey() (k keyBuf) {
	for i := range k {
		k[i] = '0'
	}
	return k
}

// set makes k the key of n < maxKeys. It runs for every operation, so it
// allocates nothing, and costs the same for every number.
func (k *keyBuf) set(n uint64) {
	d := k[keySize-keyDigits:]
	for i := keyDigits - 2; i >= 0; i -= 2 {
		q := n / 100
		r := 2 * (n - q*100)
		d[i], d[i+1] = pairs[r], pairs[r+1]
		n = q
	}
}

const pairs = "00010203040506070809" + "10111213141516171819" + "20212223242526272829" + "30313233343536373839" +
	"40414243444546474849" + "50515253545556575859" + "60616263646566676869" + "70717273747576777879" +
	"80818283848586878889" + "90919293949596979899"

// mix is the shares of the operations.
type mix struct{ get, insert, remove uint64 }

func (m mix) String() string { return fmt.Sprintf("%d:%d:%d", m.get, m.insert, m.remove) }

func parseMix(s string) (mix, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return mix{}, fmt.Errorf("mix %q: want get:insert:remove", s)
	}
	var n [3]uint64
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return mix{}, fmt.Errorf("mix %q: %w", s, err)
		}
		n[i] = v
	}
	if n[0]+n[1]+n[2] == 0 {
		return mix{}, fmt.Errorf("mix %q: nothing to do", s)
	}
	return mix{n[0], n[1], n[2]}, nil
}

// load is one run of a mix on one engine.
type load struct {
	mix        mix
	keys       uint64
	value      int
	goroutines int
	seed       uint64 // the same for all engines of a round
	duration   time.Duration
}

// tally is what a run has done.
type tally struct {
	ops     uint64
	effects uint64 // gets and removes that found their key, inserts that did not
	elapsed time.Duration
}

func (t tally) mops() float64 { return float64(t.ops) / t.elapsed.Seconds() / 1e6 }

// run lets the goroutines work for the duration. Each counts for itself, and the
// time is from the start of the first until the last has stopped. No clock is
// read in between.
func (l load) run(e engine) (tally, error) {
	var (
		total tally
		errs  []error
		mu    sync.Mutex
		done  sync.WaitGroup
		start = make(chan struct{})
		stop  paddedBool
	)
	for g := range l.goroutines {
		done.Go(func() {
			w := l.worker(g)
			<-start
			err := w.work(e, &stop.v)
			mu.Lock()
			defer mu.Unlock()
			total.ops += w.tally.ops
			total.effects += w.tally.effects
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	runtime.Gosched()
	begin := time.Now()
	close(start)
	time.Sleep(l.duration)
	stop.v.Store(true)
	done.Wait()
	total.elapsed = time.Since(begin)
	return total, errors.Join(errs...)
}

// paddedBool has its cache lines to itself.
type paddedBool struct {
	_ [64]byte
	v atomic.Bool
	_ [64]byte
}

// worker is the state of one goroutine of a load.
type worker struct {
	load
	rng   *rand.PCG
	key   keyBuf
	val   []byte
	buf   []byte
	tally tally
}

func (l load) worker(g int) *worker {
	w := &worker{load: l, rng: rand.NewPCG(l.seed, uint64(g)), key: newKey(), val: make([]byte, l.value), buf: make([]byte, 0, l.value)}
	fill(w.val, w.rng)
	return w
}

// fill makes b random, so that no medium can take advantage of it.
func fill(b []byte, rng *rand.PCG) {
	for i := range b {
		b[i] = byte(rng.Uint64())
	}
}

// batch is how many operations go by between looks at the stop flag.
const batch = 64

func (w *worker) work(e engine, stop *atomic.Bool) error {
	var t tally
	defer func() { w.tally = t }()
	for !stop.Load() {
		n, err := w.batch(e)
		t.effects += n
		if err != nil {
			return err
		}
		t.ops += batch
	}
	return nil
}

// batch carries out a batch of operations. One random number chooses the key by
// its high bits and the operation by what is left.
func (w *worker) batch(e engine) (effects uint64, err error) {
	sum := w.mix.get + w.mix.insert + w.mix.remove
	for range batch {
		n, rest := bits.Mul64(w.rng.Uint64(), w.keys)
		w.key.set(n)
		var ok bool
		switch op, _ := bits.Mul64(rest, sum); {
		case op < w.mix.get:
			w.buf, ok, err = e.get(w.buf[:0], w.key[:])
		case op < w.mix.get+w.mix.insert:
			ok, err = e.insert(w.key[:], w.val)
		default:
			ok, err = e.remove(w.key[:])
		}
		if err != nil {
			return effects, err
		}
		if ok {
			effects++
		}
	}
	return effects, nil
}

// preload inserts half the keys, chosen at random, in random order.
func preload(e engine, keys uint64, value int, seed uint64) error {
	pcg := rand.NewPCG(seed, seed)
	val, key := make([]byte, value), newKey()
	fill(val, pcg)
	for _, n := range rand.New(pcg).Perm(int(keys))[:keys/2] {
		key.set(uint64(n))
		if _, err := e.insert(key[:], val); err != nil {
			return err
		}
	}
	return e.settle()
}

func (m mix) MarshalText() ([]byte, error) { return []byte(m.String()), nil }
