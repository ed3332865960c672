//! Compiles a table of system-call rules to a classic BPF program for seccomp.
//!
//! The table is data: a call, conditions on its registers, and an action. This file is independent
//! of the reasons for refusing a call.
//!
//! The program tests the architecture word first, then the x32 bit. A search tree over the call's
//! number follows, with one block per call at its leaves. A block never continues into the next
//! one, because testing arguments overwrites the accumulator, which holds the number. The tree also
//! helps unfiltered calls. When a filter is installed, the kernel (5.11 and later) runs it once for
//! every number, to learn which calls are always allowed. With a linear search, that would be the
//! most expensive call of a start.

use std::collections::BTreeMap;

/// `AUDIT_ARCH_*` of the target architecture (linux/audit.h).
#[cfg(target_arch = "x86_64")]
pub const NATIVE_ARCH: u32 = 0xc000_003e;
/// `AUDIT_ARCH_*` of the target architecture (linux/audit.h).
#[cfg(target_arch = "aarch64")]
pub const NATIVE_ARCH: u32 = 0xc000_00b7;

/// `__X32_SYSCALL_BIT` (arch/x86/include/uapi/asm/unistd.h).
const X32_BIT: u32 = 0x4000_0000;
/// `BPF_MAXINSNS` (linux/bpf_common.h).
const MAX_INSTRUCTIONS: usize = 4096;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

/// The opcodes in use (linux/bpf_common.h): class | size or operation | mode.
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

/// A classic BPF instruction, laid out as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// Action of the kernel for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Allows the call.
    Allow,
    /// Refuses the call with this errno (1 to 4095).
    Errno(u16),
    /// Notifies the supervisor.
    Notify,
    /// Kills the process with SIGSYS.
    KillProcess,
}

impl Action {
    /// Returns the `SECCOMP_RET_*` value (linux/seccomp.h).
    const fn value(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Errno(errno) => 0x0005_0000 | errno as u32,
            Self::Notify => 0x7fc0_0000,
            Self::KillProcess => 0x8000_0000,
        }
    }
}

/// Number of bits of a register that the kernel uses for an argument. A comparison of an `int` on
/// 64 bits could be bypassed through its upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// `int`, `unsigned int`, flags: the lower half.
    Bits32,
    /// `long`, pointers.
    Bits64,
}

/// The comparison of a masked register with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
}

/// A condition on one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Index of the argument, 0 to 5.
    pub argument: u8,
    /// Number of bits that the kernel uses.
    pub width: Width,
    /// Bits that are compared.
    pub mask: u64,
    /// The comparison.
    pub comparison: Comparison,
    /// Value to compare with.
    pub value: u64,
}

impl Condition {
    /// Makes a condition: the lower 32 bits of `argument` equal `value`.
    pub const fn equals(argument: u8, value: u32) -> Self {
        Self::masked(argument, u32::MAX, Comparison::Equal, value)
    }

    /// Makes a condition: the lower 32 bits of `argument` differ from `value`.
    pub const fn differs(argument: u8, value: u32) -> Self {
        Self::masked(argument, u32::MAX, Comparison::NotEqual, value)
    }

    /// Makes a condition: at least one bit of `mask` is set in the lower 32 bits of `argument`.
    pub const fn any_bit(argument: u8, mask: u32) -> Self {
        Self::masked(argument, mask, Comparison::NotEqual, 0)
    }

    /// Makes a condition: the lower 32 bits of `argument` and `mask`, compared with `value`.
    pub const fn masked(argument: u8, mask: u32, comparison: Comparison, value: u32) -> Self {
        Self { argument, width: Width::Bits32, mask: mask as u64, comparison, value: value as u64 }
    }

    /// Returns the masked halves that must be compared: offset, mask, value.
    fn halves(self) -> impl Iterator<Item = (u32, u32, u32)> {
        let base = OFFSET_ARGS + 8 * u32::from(self.argument);
        let low = (base, self.mask as u32, self.value as u32);
        let high = (base + 4, (self.mask >> 32) as u32, (self.value >> 32) as u32);
        let wide = matches!(self.width, Width::Bits64).then_some(high);
        std::iter::once(low).chain(wide)
    }
}

/// A rule: the action applies if every condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The system call.
    pub call: i64,
    /// All must hold; an empty list always holds.
    pub conditions: Vec<Condition>,
    /// The action.
    pub action: Action,
}

/// Error of compiling a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// More instructions than the kernel accepts.
    #[error("the filter needs {0} instructions; the kernel takes {MAX_INSTRUCTIONS}")]
    TooLong(usize),
    /// A system call has more rules than a jump can skip.
    #[error("system call {0} has more conditions than one block can hold")]
    BlockTooLong(i64),
    /// An argument index above 5.
    #[error("argument {0} does not exist; a system call has six, counted from 0")]
    NoSuchArgument(u8),
    /// A negative or x32 call number, or a number above the newest reviewed call.
    #[error("{0} is no system call number of this architecture")]
    NoSuchCall(i64),
}

/// A program ready to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) instructions: Vec<Instruction>,
}

impl Program {
    /// Returns the number of instructions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Never true: the architecture check always exists.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }
}

/// Compiles `rules`. For one system call the first rule whose conditions all hold applies;
/// `otherwise` applies to all other calls. A foreign architecture kills the process. An x32 call,
/// and any unreviewed call with a number above `newest`, fails with ENOSYS.
///
/// # Errors
/// See [`CompileError`]; the limits are the kernel's.
pub fn compile(rules: &[Rule], newest: u32, otherwise: Action) -> Result<Program, CompileError> {
    let mut by_call: BTreeMap<i64, Vec<&Rule>> = BTreeMap::new();
    for rule in rules {
        if rule.call < 0 || rule.call > i64::from(newest.min(X32_BIT - 1)) {
            return Err(CompileError::NoSuchCall(rule.call));
        }
        by_call.entry(rule.call).or_default().push(rule);
    }

    let blocks = by_call
        .into_iter()
        .map(|(call, rules)| block(&rules, otherwise).map(|body| (call, body)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut out = prologue(newest);
    out.extend(tree(&blocks, otherwise)?);
    if out.len() > MAX_INSTRUCTIONS {
        return Err(CompileError::TooLong(out.len()));
    }
    Ok(Program { instructions: out })
}

/// Most calls that are compared linearly.
const LEAF_CALLS: usize = 4;

/// Compiles a search over `blocks`, which are sorted by call. The accumulator holds the number.
fn tree(blocks: &[(i64, Vec<Instruction>)], otherwise: Action) -> Result<Vec<Instruction>, CompileError> {
    if blocks.len() <= LEAF_CALLS {
        let mut out = Vec::new();
        for (call, body) in blocks {
            let skip = u8::try_from(body.len()).map_err(|_| CompileError::BlockTooLong(*call))?;
            out.push(Instruction { code: JUMP_EQUAL, jt: 0, jf: skip, k: *call as u32 });
            out.extend(body);
        }
        out.push(give(otherwise));
        return Ok(out);
    }
    let (lower, upper) = blocks.split_at(blocks.len() / 2);
    let first = upper[0].0 as u32;
    let (lower, upper) = (tree(lower, otherwise)?, tree(upper, otherwise)?);
    // A conditional jump reaches 255 instructions, an unconditional one any distance.
    let mut out = match u8::try_from(lower.len()) {
        Ok(near) => vec![Instruction { code: JUMP_AT_LEAST, jt: near, jf: 0, k: first }],
        Err(_) => vec![
            Instruction { code: JUMP_AT_LEAST, jt: 0, jf: 1, k: first },
            Instruction { code: JUMP, jt: 0, jf: 0, k: lower.len() as u32 },
        ],
    };
    out.extend(lower);
    out.extend(upper);
    Ok(out)
}

fn prologue(newest: u32) -> Vec<Instruction> {
    vec![
        load(OFFSET_ARCH),
        Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k: NATIVE_ARCH },
        give(Action::KillProcess),
        load(OFFSET_NR),
        Instruction { code: JUMP_SET, jt: 1, jf: 0, k: X32_BIT },
        Instruction { code: JUMP_GREATER, jt: 0, jf: 1, k: newest },
        give(Action::Errno(libc::ENOSYS as u16)),
    ]
}

/// Compiles the rules of one call in order, followed by `otherwise`.
fn block(rules: &[&Rule], otherwise: Action) -> Result<Vec<Instruction>, CompileError> {
    let mut out = Vec::new();
    for rule in rules {
        let tests = rule.conditions.iter().map(|c| condition(*c)).collect::<Result<Vec<_>, _>>()?;
        // Number of instructions after each test, up to and including this rule's action.
        let mut behind: usize = tests.iter().map(Vec::len).sum::<usize>() + 1;
        for test in tests {
            behind -= test.len();
            let length = test.len();
            for (at, mut instruction) in test.into_iter().enumerate() {
                let rest = length - at - 1;
                resolve(&mut instruction, rest, behind).ok_or(CompileError::BlockTooLong(rule.call))?;
                out.push(instruction);
            }
        }
        out.push(give(rule.action));
        if rule.conditions.is_empty() {
            return Ok(out);
        }
    }
    out.push(give(otherwise));
    Ok(out)
}

/// Placeholders in `jt`/`jf` of a test's jumps.
const NEXT: u8 = 0;
const HOLDS: u8 = 1;
const FAILS: u8 = 2;

/// Replaces the placeholders by distances: `rest` instructions of this test and `behind` of the
/// rule follow.
fn resolve(instruction: &mut Instruction, rest: usize, behind: usize) -> Option<()> {
    if instruction.code != JUMP_EQUAL {
        return Some(());
    }
    let distance = |to: u8| match to {
        NEXT => Some(0),
        HOLDS => u8::try_from(rest).ok(),
        _ => u8::try_from(rest + behind).ok(),
    };
    instruction.jt = distance(instruction.jt)?;
    instruction.jf = distance(instruction.jf)?;
    Some(())
}

fn condition(condition: Condition) -> Result<Vec<Instruction>, CompileError> {
    if condition.argument > 5 {
        return Err(CompileError::NoSuchArgument(condition.argument));
    }
    let halves: Vec<_> = condition.halves().collect();
    let mut out = Vec::new();
    for (index, &(offset, mask, value)) in halves.iter().enumerate() {
        let last = index + 1 == halves.len();
        out.push(load(offset));
        if mask != u32::MAX {
            out.push(Instruction { code: AND, jt: 0, jf: 0, k: mask });
        }
        let (jt, jf) = match (condition.comparison, last) {
            (Comparison::Equal, false) => (NEXT, FAILS),
            (Comparison::Equal, true) => (HOLDS, FAILS),
            (Comparison::NotEqual, false) => (NEXT, HOLDS),
            (Comparison::NotEqual, true) => (FAILS, HOLDS),
        };
        out.push(Instruction { code: JUMP_EQUAL, jt, jf, k: value });
    }
    Ok(out)
}

const fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD_WORD, jt: 0, jf: 0, k: offset }
}

const fn give(action: Action) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: action.value() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets classic BPF like the kernel, and fails on anything that the compiler must not
    /// emit.
    fn interpret(program: &Program, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            OFFSET_NR => nr,
            OFFSET_ARCH => arch,
            _ => {
                let at = offset - OFFSET_ARGS;
                assert!(at < 48 && at.is_multiple_of(4), "load at {offset}");
                (args[at as usize / 8] >> (8 * (at % 8))) as u32
            }
        };
        let (mut pc, mut accumulator) = (0, 0);
        loop {
            let i = program.instructions[pc];
            pc += 1;
            match i.code {
                LOAD_WORD => accumulator = word(i.k),
                JUMP => pc += i.k as usize,
                JUMP_AT_LEAST => pc += usize::from(if accumulator >= i.k { i.jt } else { i.jf }),
                AND => accumulator &= i.k,
                JUMP_EQUAL => pc += usize::from(if accumulator == i.k { i.jt } else { i.jf }),
                JUMP_GREATER => pc += usize::from(if accumulator > i.k { i.jt } else { i.jf }),
                JUMP_SET => pc += usize::from(if accumulator & i.k != 0 { i.jt } else { i.jf }),
                RETURN => return i.k,
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    fn rule(call: i64, conditions: &[Condition], action: Action) -> Rule {
        Rule { call, conditions: conditions.to_vec(), action }
    }

    fn check(rules: &[Rule], call: u32, args: [u64; 6], expected: Action) {
        let program = compile(rules, 500, Action::Allow).unwrap();
        assert_eq!(interpret(&program, NATIVE_ARCH, call, args), expected.value(), "call {call} with {args:x?}");
    }

    #[test]
    fn the_architecture_is_looked_at_first_and_x32_is_refused() {
        let program = compile(&[rule(1, &[], Action::Notify)], 500, Action::Allow).unwrap();
        assert_eq!(interpret(&program, 0x4000_0003, 1, [0; 6]), Action::KillProcess.value());
        assert_eq!(interpret(&program, NATIVE_ARCH, X32_BIT | 1, [0; 6]), Action::Errno(libc::ENOSYS as u16).value());
        assert_eq!(interpret(&program, NATIVE_ARCH, 1, [0; 6]), Action::Notify.value());
        assert_eq!(interpret(&program, NATIVE_ARCH, 2, [0; 6]), Action::Allow.value());
    }

    #[test]
    fn calls_that_nobody_reviewed_do_not_exist() {
        check(&[], 500, [0; 6], Action::Allow);
        check(&[], 501, [0; 6], Action::Errno(libc::ENOSYS as u16));
        check(&[], u32::MAX, [0; 6], Action::Errno(libc::ENOSYS as u16));
    }

    #[test]
    fn thirty_two_bit_conditions_ignore_the_upper_half() {
        let table = [rule(16, &[Condition::equals(1, 0x5412)], Action::Errno(1))];
        check(&table, 16, [0, 0x5412, 0, 0, 0, 0], Action::Errno(1));
        check(&table, 16, [0, 0xffff_ffff_0000_5412, 0, 0, 0, 0], Action::Errno(1));
        check(&table, 16, [0, 0x5413, 0, 0, 0, 0], Action::Allow);
        check(&table, 16, [0x5412, 0, 0, 0, 0, 0], Action::Allow);
    }

    #[test]
    fn sixty_four_bit_conditions_compare_both_halves() {
        let wide = |comparison| Condition {
            argument: 5,
            width: Width::Bits64,
            mask: u64::MAX,
            comparison,
            value: 0x1_0000_0002,
        };
        let equal = [rule(7, &[wide(Comparison::Equal)], Action::Notify)];
        let differs = [rule(7, &[wide(Comparison::NotEqual)], Action::Notify)];
        for (value, same) in [(0x1_0000_0002, true), (2, false), (0x1_0000_0003, false), (0x2_0000_0002, false)] {
            let args = [0, 0, 0, 0, 0, value];
            check(&equal, 7, args, if same { Action::Notify } else { Action::Allow });
            check(&differs, 7, args, if same { Action::Allow } else { Action::Notify });
        }
    }

    #[test]
    fn conditions_of_a_rule_are_joined_and_rules_are_tried_in_order() {
        let table = [
            rule(41, &[Condition::equals(0, 1), Condition::masked(1, 0xf, Comparison::Equal, 2)], Action::Errno(97)),
            rule(41, &[Condition::equals(0, 1)], Action::Allow),
            rule(41, &[Condition::any_bit(2, 0b110)], Action::Notify),
            rule(41, &[], Action::Errno(13)),
            rule(41, &[], Action::KillProcess),
        ];
        check(&table, 41, [1, 0x80002, 0, 0, 0, 0], Action::Errno(97));
        check(&table, 41, [1, 1, 0, 0, 0, 0], Action::Allow);
        check(&table, 41, [2, 2, 0b100, 0, 0, 0], Action::Notify);
        check(&table, 41, [2, 2, 0b001, 0, 0, 0], Action::Errno(13));
        check(&table, 42, [1, 2, 0, 0, 0, 0], Action::Allow);
    }

    /// Checks that every number is found in a tree with near and far branches, in few steps.
    #[test]
    fn each_call_finds_its_own_block() {
        let errno = |call: u32| Action::Errno(u16::try_from(call % 1000 + 1).unwrap());
        let rules: Vec<_> = (0..300_u32)
            .filter(|call| call % 3 != 1)
            .flat_map(|call| {
                let odd = rule(i64::from(call), &[Condition::any_bit(0, 1)], Action::Notify);
                [odd, rule(i64::from(call), &[], errno(call))]
            })
            .collect();
        for call in 0..320 {
            let known = call < 300 && call % 3 != 1;
            check(&rules, call, [0; 6], if known { errno(call) } else { Action::Allow });
            check(&rules, call, [1, 0, 0, 0, 0, 0], if known { Action::Notify } else { Action::Allow });
        }
    }

    /// Compares the compiler with a direct evaluation of the table over a grid.
    #[test]
    fn agrees_with_the_table_read_directly() {
        let conditions = [
            Condition::equals(0, 3),
            Condition::differs(1, 3),
            Condition::any_bit(2, 5),
            Condition { argument: 3, width: Width::Bits64, mask: !0xff, comparison: Comparison::Equal, value: 1 << 40 },
        ];
        let mut rules = Vec::new();
        for bits in 0..16_u16 {
            let chosen: Vec<_> =
                (0..4).filter(|i| bits & (1 << i) != 0).map(|i| conditions[usize::from(i as u8)]).collect();
            rules.push(rule(i64::from(bits % 5), &chosen, Action::Errno(bits + 1)));
        }
        let holds = |c: &Condition, args: &[u64; 6]| {
            let raw = args[usize::from(c.argument)];
            let seen = if c.width == Width::Bits32 { raw & 0xffff_ffff } else { raw };
            (seen & c.mask == c.value) == (c.comparison == Comparison::Equal)
        };
        let program = compile(&rules, 500, Action::Notify).unwrap();
        for grid in 0..256_u64 {
            let pick = |shift: u64, values: [u64; 4]| values[(grid >> shift & 3) as usize];
            let args = [
                pick(0, [3, 0, 0x1_0000_0003, 7]),
                pick(2, [3, 0, 0x1_0000_0003, 7]),
                pick(4, [0, 1, 2, 0x1_0000_0004]),
                pick(6, [1 << 40, (1 << 40) | 0xff, 1 << 41, 0]),
                0,
                0,
            ];
            for call in 0..6_u32 {
                let expected = rules
                    .iter()
                    .find(|r| r.call == i64::from(call) && r.conditions.iter().all(|c| holds(c, &args)))
                    .map_or(Action::Notify, |r| r.action);
                assert_eq!(interpret(&program, NATIVE_ARCH, call, args), expected.value(), "{call} {args:x?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_an_error() {
        let long: Vec<_> = (0..200).map(|v| rule(1, &[Condition::equals(0, v)], Action::Notify)).collect();
        assert_eq!(compile(&long, 500, Action::Allow), Err(CompileError::BlockTooLong(1)));
        let many: Vec<_> = (0..3000).map(|n| rule(n, &[], Action::Notify)).collect();
        assert!(matches!(compile(&many, 5000, Action::Allow), Err(CompileError::TooLong(_))));
        assert_eq!(
            compile(&[rule(1, &[Condition::equals(6, 0)], Action::Notify)], 500, Action::Allow),
            Err(CompileError::NoSuchArgument(6))
        );
        assert_eq!(compile(&[rule(-1, &[], Action::Notify)], 500, Action::Allow), Err(CompileError::NoSuchCall(-1)));
    }
}
