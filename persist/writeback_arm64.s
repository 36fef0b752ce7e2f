//go:build !purego && !race

#include "textflag.h"

// func StoreWord(p *uint64, v uint64)
TEXT ·StoreWord(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// count > 0, p on a line; no barrier.

// func cvapLines(p unsafe.Pointer, count int)
TEXT ·cvapLines(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD count+8(FP), R1
loop:
	DC   CVAP, R0
	ADD  $64, R0
	SUBS $1, R1
	BNE  loop
	RET

// func cvacLines(p unsafe.Pointer, count int)
TEXT ·cvacLines(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD count+8(FP), R1
loop:
	DC   CVAC, R0
	ADD  $64, R0
	SUBS $1, R1
	BNE  loop
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	DSB $11
	RET

// func drainFence()
TEXT ·drainFence(SB), NOSPLIT, $0-0
	DSB $11
	RET
