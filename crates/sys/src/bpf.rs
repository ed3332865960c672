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
const AND_MASK: u16 = 0x54;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER: u16 = 0x25;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_SET: u16 = 0x45;
const RETURN_VALUE: u16 = 0x06;

/// A classic BPF instruction, laid out as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BpfInstruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// Action of the kernel for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeccompAction {
    /// Allows the call.
    Allow,
    /// Refuses the call with this errno (1 to 4095).
    Errno(u16),
    /// Notifies the supervisor.
    Notify,
    /// Kills the process with SIGSYS.
    KillProcess,
}

impl SeccompAction {
    /// Returns the `SECCOMP_RET_*` value (linux/seccomp.h).
    const fn return_value(self) -> u32 {
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
pub enum ArgumentWidth {
    /// `int`, `unsigned int`, flags: the lower half.
    Bits32,
    /// `long`, pointers.
    Bits64,
}

/// The comparison of a masked register with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentComparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
}

/// A condition on one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgumentCondition {
    /// Index of the argument, 0 to 5.
    pub argument: u8,
    /// Number of bits that the kernel uses.
    pub width: ArgumentWidth,
    /// Bits that are compared.
    pub mask: u64,
    /// The comparison.
    pub comparison: ArgumentComparison,
    /// Value to compare with.
    pub value: u64,
}

impl ArgumentCondition {
    /// Makes a condition: the lower 32 bits of `argument` equal `value`.
    pub const fn argument_equals(argument: u8, value: u32) -> Self {
        Self::compare_masked(argument, u32::MAX, ArgumentComparison::Equal, value)
    }

    /// Makes a condition: the lower 32 bits of `argument` differ from `value`.
    pub const fn argument_differs(argument: u8, value: u32) -> Self {
        Self::compare_masked(argument, u32::MAX, ArgumentComparison::NotEqual, value)
    }

    /// Makes a condition: at least one bit of `mask` is set in the lower 32 bits of `argument`.
    pub const fn any_bit(argument: u8, mask: u32) -> Self {
        Self::compare_masked(argument, mask, ArgumentComparison::NotEqual, 0)
    }

    /// Makes a condition: the lower 32 bits of `argument` and `mask`, compared with `value`.
    pub const fn compare_masked(argument: u8, mask: u32, comparison: ArgumentComparison, value: u32) -> Self {
        Self { argument, width: ArgumentWidth::Bits32, mask: mask as u64, comparison, value: value as u64 }
    }

    /// Returns the masked halves that must be compared: offset, mask, value.
    fn masked_halves(self) -> impl Iterator<Item = (u32, u32, u32)> {
        let base = OFFSET_ARGS + 8 * u32::from(self.argument);
        let low = (base, self.mask as u32, self.value as u32);
        let high = (base + 4, (self.mask >> 32) as u32, (self.value >> 32) as u32);
        let wide = matches!(self.width, ArgumentWidth::Bits64).then_some(high);
        std::iter::once(low).chain(wide)
    }
}

/// A rule: the action applies if every condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeccompRule {
    /// The system call.
    pub call: i64,
    /// All must hold; an empty list always holds.
    pub conditions: Vec<ArgumentCondition>,
    /// The action.
    pub action: SeccompAction,
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
    #[error("{0} is not a system call number of this architecture")]
    NoSuchCall(i64),
}

/// A program ready to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeccompProgram {
    pub(crate) instructions: Vec<BpfInstruction>,
}

impl SeccompProgram {
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
pub fn compile_rules(
    rules: &[SeccompRule],
    newest: u32,
    otherwise: SeccompAction,
) -> Result<SeccompProgram, CompileError> {
    let mut by_call: BTreeMap<i64, Vec<&SeccompRule>> = BTreeMap::new();
    for rule in rules {
        if rule.call < 0 || rule.call > i64::from(newest.min(X32_BIT - 1)) {
            return Err(CompileError::NoSuchCall(rule.call));
        }
        by_call.entry(rule.call).or_default().push(rule);
    }

    let blocks = by_call
        .into_iter()
        .map(|(call, rules)| compile_call_rules(&rules, otherwise).map(|body| (call, body)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut out = compile_prologue(newest);
    out.extend(compile_search_tree(&blocks, otherwise)?);
    if out.len() > MAX_INSTRUCTIONS {
        return Err(CompileError::TooLong(out.len()));
    }
    Ok(SeccompProgram { instructions: out })
}

/// Most calls that are compared linearly.
const LINEAR_CALLS_MAX: usize = 4;

/// Compiles a search over `blocks`, which are sorted by call. The accumulator holds the number.
fn compile_search_tree(
    blocks: &[(i64, Vec<BpfInstruction>)],
    otherwise: SeccompAction,
) -> Result<Vec<BpfInstruction>, CompileError> {
    if blocks.len() <= LINEAR_CALLS_MAX {
        let mut out = Vec::new();
        for (call, body) in blocks {
            let skip = u8::try_from(body.len()).map_err(|_| CompileError::BlockTooLong(*call))?;
            out.push(BpfInstruction { code: JUMP_IF_EQUAL, jt: 0, jf: skip, k: *call as u32 });
            out.extend(body);
        }
        out.push(return_instruction(otherwise));
        return Ok(out);
    }
    let (lower, upper) = blocks.split_at(blocks.len() / 2);
    let first = upper[0].0 as u32;
    let (lower, upper) = (compile_search_tree(lower, otherwise)?, compile_search_tree(upper, otherwise)?);
    // A conditional jump reaches 255 instructions, an unconditional one any distance.
    let mut out = match u8::try_from(lower.len()) {
        Ok(near) => vec![BpfInstruction { code: JUMP_IF_AT_LEAST, jt: near, jf: 0, k: first }],
        Err(_) => vec![
            BpfInstruction { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: first },
            BpfInstruction { code: JUMP_ALWAYS, jt: 0, jf: 0, k: lower.len() as u32 },
        ],
    };
    out.extend(lower);
    out.extend(upper);
    Ok(out)
}

fn compile_prologue(newest: u32) -> Vec<BpfInstruction> {
    vec![
        load_instruction(OFFSET_ARCH),
        BpfInstruction { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: NATIVE_ARCH },
        return_instruction(SeccompAction::KillProcess),
        load_instruction(OFFSET_NR),
        BpfInstruction { code: JUMP_IF_SET, jt: 1, jf: 0, k: X32_BIT },
        BpfInstruction { code: JUMP_IF_GREATER, jt: 0, jf: 1, k: newest },
        return_instruction(SeccompAction::Errno(libc::ENOSYS as u16)),
    ]
}

/// Compiles the rules of one call in order, followed by `otherwise`.
fn compile_call_rules(rules: &[&SeccompRule], otherwise: SeccompAction) -> Result<Vec<BpfInstruction>, CompileError> {
    let mut out = Vec::new();
    for rule in rules {
        let tests = rule.conditions.iter().map(|c| compile_condition(*c)).collect::<Result<Vec<_>, _>>()?;
        // Number of instructions after each test, up to and including this rule's action.
        let mut behind: usize = tests.iter().map(Vec::len).sum::<usize>() + 1;
        for test in tests {
            behind -= test.len();
            let length = test.len();
            for (at, mut instruction) in test.into_iter().enumerate() {
                let rest = length - at - 1;
                resolve_placeholders(&mut instruction, rest, behind).ok_or(CompileError::BlockTooLong(rule.call))?;
                out.push(instruction);
            }
        }
        out.push(return_instruction(rule.action));
        if rule.conditions.is_empty() {
            return Ok(out);
        }
    }
    out.push(return_instruction(otherwise));
    Ok(out)
}

/// Placeholders in `jt`/`jf` of a test's jumps.
const NEXT_PLACEHOLDER: u8 = 0;
const HOLDS_PLACEHOLDER: u8 = 1;
const FAILS_PLACEHOLDER: u8 = 2;

/// Replaces the placeholders by distances: `rest` instructions of this test and `behind` of the
/// rule follow.
fn resolve_placeholders(instruction: &mut BpfInstruction, rest: usize, behind: usize) -> Option<()> {
    if instruction.code != JUMP_IF_EQUAL {
        return Some(());
    }
    let distance = |to: u8| match to {
        NEXT_PLACEHOLDER => Some(0),
        HOLDS_PLACEHOLDER => u8::try_from(rest).ok(),
        _ => u8::try_from(rest + behind).ok(),
    };
    instruction.jt = distance(instruction.jt)?;
    instruction.jf = distance(instruction.jf)?;
    Some(())
}

fn compile_condition(condition: ArgumentCondition) -> Result<Vec<BpfInstruction>, CompileError> {
    if condition.argument > 5 {
        return Err(CompileError::NoSuchArgument(condition.argument));
    }
    let halves: Vec<_> = condition.masked_halves().collect();
    let mut out = Vec::new();
    for (index, &(offset, mask, value)) in halves.iter().enumerate() {
        let last = index + 1 == halves.len();
        out.push(load_instruction(offset));
        if mask != u32::MAX {
            out.push(BpfInstruction { code: AND_MASK, jt: 0, jf: 0, k: mask });
        }
        let (jt, jf) = match (condition.comparison, last) {
            (ArgumentComparison::Equal, false) => (NEXT_PLACEHOLDER, FAILS_PLACEHOLDER),
            (ArgumentComparison::Equal, true) => (HOLDS_PLACEHOLDER, FAILS_PLACEHOLDER),
            (ArgumentComparison::NotEqual, false) => (NEXT_PLACEHOLDER, HOLDS_PLACEHOLDER),
            (ArgumentComparison::NotEqual, true) => (FAILS_PLACEHOLDER, HOLDS_PLACEHOLDER),
        };
        out.push(BpfInstruction { code: JUMP_IF_EQUAL, jt, jf, k: value });
    }
    Ok(out)
}

const fn load_instruction(offset: u32) -> BpfInstruction {
    BpfInstruction { code: LOAD_WORD, jt: 0, jf: 0, k: offset }
}

const fn return_instruction(action: SeccompAction) -> BpfInstruction {
    BpfInstruction { code: RETURN_VALUE, jt: 0, jf: 0, k: action.return_value() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets classic BPF like the kernel, and fails on anything that the compiler must not
    /// emit.
    fn interpret(program: &SeccompProgram, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
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
                JUMP_ALWAYS => pc += i.k as usize,
                JUMP_IF_AT_LEAST => pc += usize::from(if accumulator >= i.k { i.jt } else { i.jf }),
                AND_MASK => accumulator &= i.k,
                JUMP_IF_EQUAL => pc += usize::from(if accumulator == i.k { i.jt } else { i.jf }),
                JUMP_IF_GREATER => pc += usize::from(if accumulator > i.k { i.jt } else { i.jf }),
                JUMP_IF_SET => pc += usize::from(if accumulator & i.k != 0 { i.jt } else { i.jf }),
                RETURN_VALUE => return i.k,
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    fn rule(call: i64, conditions: &[ArgumentCondition], action: SeccompAction) -> SeccompRule {
        SeccompRule { call, conditions: conditions.to_vec(), action }
    }

    fn check(rules: &[SeccompRule], call: u32, args: [u64; 6], expected: SeccompAction) {
        let program = compile_rules(rules, 500, SeccompAction::Allow).unwrap();
        assert_eq!(interpret(&program, NATIVE_ARCH, call, args), expected.return_value(), "call {call} with {args:x?}");
    }

    #[test]
    fn the_architecture_is_looked_at_first_and_x32_is_refused() {
        let program = compile_rules(&[rule(1, &[], SeccompAction::Notify)], 500, SeccompAction::Allow).unwrap();
        assert_eq!(interpret(&program, 0x4000_0003, 1, [0; 6]), SeccompAction::KillProcess.return_value());
        assert_eq!(
            interpret(&program, NATIVE_ARCH, X32_BIT | 1, [0; 6]),
            SeccompAction::Errno(libc::ENOSYS as u16).return_value()
        );
        assert_eq!(interpret(&program, NATIVE_ARCH, 1, [0; 6]), SeccompAction::Notify.return_value());
        assert_eq!(interpret(&program, NATIVE_ARCH, 2, [0; 6]), SeccompAction::Allow.return_value());
    }

    #[test]
    fn unreviewed_system_calls_do_not_exist() {
        check(&[], 500, [0; 6], SeccompAction::Allow);
        check(&[], 501, [0; 6], SeccompAction::Errno(libc::ENOSYS as u16));
        check(&[], u32::MAX, [0; 6], SeccompAction::Errno(libc::ENOSYS as u16));
    }

    #[test]
    fn thirty_two_bit_conditions_ignore_the_upper_half() {
        let table = [rule(16, &[ArgumentCondition::argument_equals(1, 0x5412)], SeccompAction::Errno(1))];
        check(&table, 16, [0, 0x5412, 0, 0, 0, 0], SeccompAction::Errno(1));
        check(&table, 16, [0, 0xffff_ffff_0000_5412, 0, 0, 0, 0], SeccompAction::Errno(1));
        check(&table, 16, [0, 0x5413, 0, 0, 0, 0], SeccompAction::Allow);
        check(&table, 16, [0x5412, 0, 0, 0, 0, 0], SeccompAction::Allow);
    }

    #[test]
    fn sixty_four_bit_conditions_compare_both_halves() {
        let wide = |comparison| ArgumentCondition {
            argument: 5,
            width: ArgumentWidth::Bits64,
            mask: u64::MAX,
            comparison,
            value: 0x1_0000_0002,
        };
        let equal = [rule(7, &[wide(ArgumentComparison::Equal)], SeccompAction::Notify)];
        let differs = [rule(7, &[wide(ArgumentComparison::NotEqual)], SeccompAction::Notify)];
        for (value, same) in [(0x1_0000_0002, true), (2, false), (0x1_0000_0003, false), (0x2_0000_0002, false)] {
            let args = [0, 0, 0, 0, 0, value];
            check(&equal, 7, args, if same { SeccompAction::Notify } else { SeccompAction::Allow });
            check(&differs, 7, args, if same { SeccompAction::Allow } else { SeccompAction::Notify });
        }
    }

    #[test]
    fn conditions_of_a_rule_are_joined_and_rules_are_tried_in_order() {
        let table = [
            rule(
                41,
                &[
                    ArgumentCondition::argument_equals(0, 1),
                    ArgumentCondition::compare_masked(1, 0xf, ArgumentComparison::Equal, 2),
                ],
                SeccompAction::Errno(97),
            ),
            rule(41, &[ArgumentCondition::argument_equals(0, 1)], SeccompAction::Allow),
            rule(41, &[ArgumentCondition::any_bit(2, 0b110)], SeccompAction::Notify),
            rule(41, &[], SeccompAction::Errno(13)),
            rule(41, &[], SeccompAction::KillProcess),
        ];
        check(&table, 41, [1, 0x80002, 0, 0, 0, 0], SeccompAction::Errno(97));
        check(&table, 41, [1, 1, 0, 0, 0, 0], SeccompAction::Allow);
        check(&table, 41, [2, 2, 0b100, 0, 0, 0], SeccompAction::Notify);
        check(&table, 41, [2, 2, 0b001, 0, 0, 0], SeccompAction::Errno(13));
        check(&table, 42, [1, 2, 0, 0, 0, 0], SeccompAction::Allow);
    }

    /// Checks that every number is found in a tree with near and far branches, in few steps.
    #[test]
    fn each_call_finds_its_own_block() {
        let errno = |call: u32| SeccompAction::Errno(u16::try_from(call % 1000 + 1).unwrap());
        let rules: Vec<_> = (0..300_u32)
            .filter(|call| call % 3 != 1)
            .flat_map(|call| {
                let odd = rule(i64::from(call), &[ArgumentCondition::any_bit(0, 1)], SeccompAction::Notify);
                [odd, rule(i64::from(call), &[], errno(call))]
            })
            .collect();
        for call in 0..320 {
            let known = call < 300 && call % 3 != 1;
            check(&rules, call, [0; 6], if known { errno(call) } else { SeccompAction::Allow });
            check(&rules, call, [1, 0, 0, 0, 0, 0], if known { SeccompAction::Notify } else { SeccompAction::Allow });
        }
    }

    /// Compares the compiler with a direct evaluation of the table over a grid.
    #[test]
    fn agrees_with_the_table_read_directly() {
        let conditions = [
            ArgumentCondition::argument_equals(0, 3),
            ArgumentCondition::argument_differs(1, 3),
            ArgumentCondition::any_bit(2, 5),
            ArgumentCondition {
                argument: 3,
                width: ArgumentWidth::Bits64,
                mask: !0xff,
                comparison: ArgumentComparison::Equal,
                value: 1 << 40,
            },
        ];
        let mut rules = Vec::new();
        for bits in 0..16_u16 {
            let chosen: Vec<_> =
                (0..4).filter(|i| bits & (1 << i) != 0).map(|i| conditions[usize::from(i as u8)]).collect();
            rules.push(rule(i64::from(bits % 5), &chosen, SeccompAction::Errno(bits + 1)));
        }
        let holds = |c: &ArgumentCondition, args: &[u64; 6]| {
            let raw = args[usize::from(c.argument)];
            let seen = if c.width == ArgumentWidth::Bits32 { raw & 0xffff_ffff } else { raw };
            (seen & c.mask == c.value) == (c.comparison == ArgumentComparison::Equal)
        };
        let program = compile_rules(&rules, 500, SeccompAction::Notify).unwrap();
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
                    .map_or(SeccompAction::Notify, |r| r.action);
                assert_eq!(interpret(&program, NATIVE_ARCH, call, args), expected.return_value(), "{call} {args:x?}");
            }
        }
    }

    #[test]
    fn unencodable_values_are_errors() {
        let long: Vec<_> =
            (0..200).map(|v| rule(1, &[ArgumentCondition::argument_equals(0, v)], SeccompAction::Notify)).collect();
        assert_eq!(compile_rules(&long, 500, SeccompAction::Allow), Err(CompileError::BlockTooLong(1)));
        let many: Vec<_> = (0..3000).map(|n| rule(n, &[], SeccompAction::Notify)).collect();
        assert!(matches!(compile_rules(&many, 5000, SeccompAction::Allow), Err(CompileError::TooLong(_))));
        assert_eq!(
            compile_rules(
                &[rule(1, &[ArgumentCondition::argument_equals(6, 0)], SeccompAction::Notify)],
                500,
                SeccompAction::Allow
            ),
            Err(CompileError::NoSuchArgument(6))
        );
        assert_eq!(
            compile_rules(&[rule(-1, &[], SeccompAction::Notify)], 500, SeccompAction::Allow),
            Err(CompileError::NoSuchCall(-1))
        );
    }
}
