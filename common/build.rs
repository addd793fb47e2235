//! Compiles the relay's protobuf schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/relay.proto");
    let descriptors = protox::compile(["proto/relay.proto"], ["proto"])?;
    prost_build::Config::new()
        // Ciphertexts are passed on without a copy.
        .bytes([".skald.relay.v2.Message.ciphertext"])
        .compile_fds(descriptors)?;
    Ok(())
}
