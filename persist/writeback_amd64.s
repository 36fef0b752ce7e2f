//go:build !purego && !race

#include "textflag.h"

// func StoreWord(p *uint64, v uint64)
TEXT ·StoreWord(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET

// The three loops: count > 0, p on a line; they do not fence.

// func clwbLines(p unsafe.Pointer, count int)
TEXT ·clwbLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ count+8(FP), CX
loop:
	CLWB (AX)
	ADDQ $64, AX
	DECQ CX
	JNZ  loop
	RET

// func clflushoptLines(p unsafe.Pointer, count int)
TEXT ·clflushoptLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ count+8(FP), CX
loop:
	CLFLUSHOPT (AX)
	ADDQ $64, AX
	DECQ CX
	JNZ  loop
	RET

// func clflushLines(p unsafe.Pointer, count int)
TEXT ·clflushLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ count+8(FP), CX
loop:
	CLFLUSH (AX)
	ADDQ $64, AX
	DECQ CX
	JNZ  loop
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func drainFence()
TEXT ·drainFence(SB), NOSPLIT, $0-0
	SFENCE
	MFENCE
	RET

// func cpuid7() (ebx uint32)
TEXT ·cpuid7(SB), NOSPLIT, $0-4
	XORL AX, AX
	CPUID
	CMPL AX, $7
	JLT  none
	MOVL $7, AX
	XORL CX, CX
	CPUID
	MOVL BX, ebx+0(FP)
	RET
none:
	MOVL $0, ebx+0(FP)
	RET
