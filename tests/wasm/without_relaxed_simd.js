// Makes relaxed SIMD unavailable to what is loaded afterwards, in tests of tools/test_wasm.py.
WebAssembly.validate = () => false;
