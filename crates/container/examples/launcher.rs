//! The launcher by itself, as tests put it into containers: what `stockade inside` is.

fn main() -> std::io::Result<()> {
    stockade_container::in_container::run_subcommand(&std::env::args().nth(2).unwrap_or_default())
}
