/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym(handle, name).  A name that is not covered goes to the real dlsym by a
 * jump: with our registers restored and the caller's return address, which is
 * how glibc learns whose scope to search.
 *
 * The name is read byte by byte: a wider load could cross into an unmapped page.
 */
	.text
	.globl	cui_dlsym_entry
	.type	cui_dlsym_entry, %function
	.globl	cui_dlsym_entry_2_34
	.set	cui_dlsym_entry_2_34, cui_dlsym_entry
#if defined(__x86_64__)
	.symver	cui_dlsym_entry, dlsym@GLIBC_2.2.5
#elif defined(__aarch64__)
	.symver	cui_dlsym_entry, dlsym@GLIBC_2.17
#endif
	.symver	cui_dlsym_entry_2_34, dlsym@@GLIBC_2.34
	.hidden	cui_real_dlsym
	.hidden	cui_dlsym
	.hidden	cui_find_real_dlsym
	.p2align 4

#if defined(__x86_64__)

cui_dlsym_entry:
	.cfi_startproc
	endbr64
	cmpb	$'c', (%rsi)
	jne	.Lleave
	cmpb	$'u', 1(%rsi)
	jne	.Lleave
	movq	(%rsp), %rdx
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	cui_dlsym
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rdx, %rdx
	jnz	.Lleave
	ret
.Lleave:
	movq	cui_real_dlsym(%rip), %rax
	testq	%rax, %rax
	jz	.Lfirst
	jmp	*%rax
.Lfirst:
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	cui_find_real_dlsym
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
	.cfi_endproc
	.size	cui_dlsym_entry, . - cui_dlsym_entry

/* GNU_PROPERTY_X86_FEATURE_1_AND: IBT and SHSTK */
#define FEATURE_AND	0xc0000002
#define FEATURES	3

#elif defined(__aarch64__)

cui_dlsym_entry:
	.cfi_startproc
	hint	#34			/* bti c */
	ldrb	w9, [x1]
	cmp	w9, #'c'
	b.ne	.Lleave
	ldrb	w9, [x1, #1]
	cmp	w9, #'u'
	b.ne	.Lleave
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	mov	x2, x30
	bl	cui_dlsym
	mov	x9, x0
	mov	x10, x1
	ldp	x0, x1, [sp, #16]
	ldp	x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbnz	x10, .Lleave
	mov	x0, x9
	ret
.Lleave:
	adrp	x16, cui_real_dlsym
	ldr	x16, [x16, #:lo12:cui_real_dlsym]
	cbz	x16, .Lfirst
	br	x16
.Lfirst:
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	bl	cui_find_real_dlsym
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldp	x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	br	x16
	.cfi_endproc
	.size	cui_dlsym_entry, . - cui_dlsym_entry

/* GNU_PROPERTY_AARCH64_FEATURE_1_AND: BTI and PAC */
#define FEATURE_AND	0xc0000000
#define FEATURES	3

#endif

	.section .note.GNU-stack, "", %progbits
	.section .note.gnu.property, "a"
	.p2align 3
	.long	4, 16, 5
	.asciz	"GNU"
	.long	FEATURE_AND, 4, FEATURES, 0
