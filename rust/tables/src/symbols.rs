//! The characters that stand for bytes in vocab.json and merges.txt.

/// The code point that stands for each byte.
///
/// GPT-2's files are text: bytes that print as themselves in Latin-1 are themselves, the others follow from U+0100 on.
pub fn byte_symbols() -> [char; 256] {
    let mut symbols = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code_point = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        symbols[byte as usize] = char::from_u32(code_point).unwrap_or('\0');
    }
    symbols
}
