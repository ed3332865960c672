//! Whether a binary is static, by its ELF headers (elf(5)).

/// Type of the program header that names the dynamic loader.
const PT_INTERP: u32 = 3;
/// Size of a program header in a 64-bit file.
const PROGRAM_HEADER_BYTES: usize = 56;

/// Returns true if this is a little-endian 64-bit ELF file that needs no dynamic loader.
pub fn is_static(file: &[u8]) -> bool {
    program_header_types(file).is_some_and(|types| !types.is_empty() && !types.contains(&PT_INTERP))
}

/// Returns the types of all program headers; nothing if the file is too short or of another kind.
fn program_header_types(file: &[u8]) -> Option<Vec<u32>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = usize::try_from(u64::from_le_bytes(file.get(0x20..0x28)?.try_into().ok()?)).ok()?;
    let count = u16::from_le_bytes(file.get(0x38..0x3a)?.try_into().ok()?);
    let header_type = |n: usize| {
        let start = offset.checked_add(n * PROGRAM_HEADER_BYTES)?;
        Some(u32::from_le_bytes(file.get(start..start.checked_add(4)?)?.try_into().ok()?))
    };
    (0..usize::from(count)).map(header_type).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_binary_names_a_loader() {
        assert!(!is_static(&std::fs::read("/bin/ls").unwrap()), "the system's programs are dynamic");
        // Tests are built with the flags of the product.
        assert!(is_static(&std::fs::read("/proc/self/exe").unwrap()));
        assert!(!is_static(b"") && !is_static(b"\x7fELF\x02\x01") && !is_static(b"#!/bin/sh\n"));
    }
}
