// Package hook lends package uverbs/mlx5 functions of package uverbs that programs do not have: to
// issue a command on the file of a device, and to create and change queue pairs of DC.
package hook

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// Functions are functions of package uverbs. This package cannot import it, so its types are
// parameters.
type Functions[Device, PD, QP, QPOptions, WQ, WQOptions any] struct {
	// Part returns the state of package uverbs/mlx5 of an open device, or nil with another driver.
	Part func(*Device) (*Part, error)

	// Device and QP keep an object open until [Object.Release]. If changes is set, no other command
	// changes the QP meanwhile.
	Device func(*Device) (*Object, error)
	QP     func(q *QP, changes bool) (*Object, error)

	// CreateDC creates a DCI or a DCT, and ReadyDC makes it ready. maxReads returns the maximum
	// number of READs and atomics that a DCI has in flight, or 0 if it is not known.
	CreateDC func(*PD, QPOptions, DC) (*QP, error)
	ReadyDC  func(q *QP, maxReads func(*QP) uint8) error

	// QueryDevice returns the driver's part of QUERY_DEVICE. The caller holds the device.
	QueryDevice func(*Device) ([]byte, error)

	// CreateStrided creates a WQ whose receives have strides, and whose CQ no other queue uses.
	CreateStrided func(*PD, WQOptions, mlx5.Strides, mlx5.Compression) (*WQ, *Strided, error)

	// DataDirectPath asks the kernel for the path. The caller holds the device.
	DataDirectPath func(*Device) (string, error)
}

// Uverbs is the [*Functions] of package uverbs.
var Uverbs any

// Object is an open device, or a QP of it.
type Object struct {
	Conn     *kernel.Conn
	Driver   string // Driver is the name of the device's driver.
	Imported bool   // Imported says that another process has opened the device.
	Part     *Part  // Part is nil with another driver.
	QP       *QP    // QP is nil for a device.

	// Fail returns the error of a command. If refused is set, EIO is the answer of the firmware and
	// does not say that the device is gone.
	Fail func(verb string, errno syscall.Errno, hint string, refused bool) error

	Release func()
}

// QP has the facts about a QP that package uverbs does not export.
type QP struct {
	Handle  uint32
	Type    ib.QPType
	Streams bool   // Streams says that a DCI has streams.
	TIS     uint32 // TIS is the TIS of a QP for raw packets.
	HasTIS  bool   // HasTIS says that its number is known.
}

// DC are the options of DC that other QPs do not have.
type DC struct {
	Key             uint64 // Key is the access key of a DCT.
	Streams, Failed int    // Streams and Failed are the numbers of mlx5.DCIStreams.
}

// Strided are the rings of a WQ with strides and its CQ.
type Strided struct {
	Mu *mmio.Lock       // Mu is held while the rings are read.
	WQ *mlx5.RecvQueue  // WQ is only for a goroutine that holds Mu.
	CQ **mlx5.CompQueue // CQ points to nil once the CQ is closed. It is guarded by Mu.
}

// Part is what a device keeps for package uverbs/mlx5.
type Part struct {
	DEVX bool // DEVX says that the context was opened for commands to the firmware, or may have been.

	// What the firmware says about the adapter.
	CapsMu sync.Mutex
	Known  bool
	Caps   mlx5.Caps

	// The kernel's page with the time of the clock.
	ClockMu    sync.Mutex
	ClockThere bool // ClockThere says that the kernel has the page.
	Clock      *mlx5.ClockInfo
	Page       *mmio.Region // Page is nil before the first use.
}
