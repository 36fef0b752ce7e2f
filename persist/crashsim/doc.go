// Package crashsim is a simulated machine under a [persist.Region]. It cuts a
// program at every write-back, order, store, fence and named point, and starts
// it again on every image that the crash could have left.
//
//	            drive                        check
//	store ─▶ event 17 ─▶ images ─┬─▶ machine ─▶ recover, compare with the oracle
//	store ─▶ event 18    of 17   ├─▶ machine ─▶ recover ─▶ event 4 ─▶ images ...
//	  ...                        └─▶ machine
//
// # What a crash leaves
//
// Memory is lines of [persist.LineSize] bytes; each has a history of contents,
// one per event that changed it. Aligned words do not tear. The [Flavor] says
// which histories media may show:
//
//   - [Lines], persistent memory. Each line shows any content since the last one
//     known durable. A write-back marks, for its handle, the history so far; that
//     handle's next order or fence makes what it marked durable. Ordered stores
//     execute at once and are not durable by themselves: write them back.
//   - [Redo], an ordinary disk. Each line shows any content since the machine
//     booted, whatever was ordered or fenced, and over them is replayed a log. An
//     order puts the bytes of the ranges that its handle wrote back, as they are
//     then, and the handle's stores into the log, in the sequence they were asked
//     for. A fence does that, makes the whole log durable, and only then executes
//     the stores in memory; the event [Sync] is a crash in between. A crash keeps the
//     durable log and any number of whole records after it. What the log covers it also hides: a plain store to bytes
//     in the durable log, not logged again, is lost.
//   - [Process]: memory as it was.
//
// The adversary is whole lines by default: one decision a line. With Words each
// word is decided on alone, which tears copies and reorders stores in a line.
//
// A machine booted on an image takes all of it for durable. [Machine.Kill] boots
// one after the process alone ended: memory stays, and so does what is uncertain
// about media, for a power loss to take later.
//
// # Exploring
//
// drive runs a workload and keeps an oracle: what was begun, what was
// acknowledged. check opens the image and compares. [EveryCrash] runs both:
//
//	var begun, acked int
//	crashsim.EveryCrash(t, crashsim.Options{
//		Config: crashsim.Config{Flavor: crashsim.Redo},
//		Key:    func() uint64 { return uint64(begun)<<32 | uint64(acked) },
//	}, func(m *crashsim.Machine) error {
//		begun, acked = 0, 0
//		var q *Queue
//		m.Quiet(func() { q = create(m) }) // not crashed
//		for i := range 3 {
//			begun = i + 1
//			q.Push(i)
//			acked = i + 1
//		}
//		return nil
//	}, func(m *crashsim.Machine, c crashsim.Crash) error {
//		q, err := open(m) // crashed again, at each of its events
//		if err != nil {
//			return err
//		}
//		m.Recovered() // from here on not
//		defer q.Close()
//		return compare(q, acked, begun)
//	})
//
// A failure names its [Crash], whose text in Options.Replay (or, for EveryCrash,
// in the environment variable TIDEMARK_REPLAY) runs that one alone. The check is
// taken to be a function of the image and of what Options.Key returns: an image
// met again under the same key is not checked again. Leave Key nil rather than
// have it miss a part of the oracle.
//
// Above the caps of [Options] images are sampled, from a seed, and the [Report]
// says how many were left: the oldest and the newest image come first, then those
// that differ from them in one line. A correct protocol that fences often stays
// far below the caps.
//
// [Need] tests the test: it drops what each call site writes back, orders or
// fences, and reports the sites whose loss nothing notices.
//
// Plain stores count only when they are announced ([persist.Region.Wrote], or a
// write-back of their range). [Machine.Unannounced] finds those that were not:
// assert that it is empty when a test ends.
//
// # What is not modelled
//
//   - Store buffers: another goroutine sees a store at once, and a fence is
//     durable when it returns, not a little before.
//   - Interleavings: a crash comes between the events of the run there was. Drive
//     a structure through its schedules to see others.
//   - The states within one Wrote of a line, unless Words is set; across lines
//     they are all there.
//   - Bytes of the log: a record is kept or lost whole, as its checksum has it.
//   - Damage: flipped bits, lost or misdirected writes. See FenceError for a
//     device that fails and says so.
//   - A checkpoint of the log at any moment, unless CheckpointEvery asks for
//     some; a machine booted on an image starts with an empty log.
//   - The end of backed memory: a grown size is durable at once.
package crashsim
