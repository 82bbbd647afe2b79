package nvgpu

const (
	A = iota
	B
	C = 1 << (A + 2)
)

type P struct {
	H Handle `nvproxy:"same"`
	Pad [4]byte
	N uint64
}

type Handle struct{ Val uint32 }
