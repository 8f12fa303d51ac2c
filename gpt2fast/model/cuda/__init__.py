"""GPT-2 on an NVIDIA GPU: the operations of `gpt2fast.kernels` on CuPy, without PyTorch.

`gpt2fast.load(name, device="cuda")` comes here; nothing else imports this package, and it imports CuPy only when a
device is opened.  From the top down:

- `backend`      what `gpt2fast.model.gpt2` asks of a device: weights, the network, caches;
- `transformer`  one pass: which operation follows which;
- `kv_cache`     keys and values in blocks of the device's memory;
- `choice`       logits on the device, and the ids that are chosen there;
- `weights`      matrices, moved to the device once;
- `operations`   one method for each operation: matrix products of cuBLAS, and the kernels of the `.cu` files;
- `device`       the only file that knows CuPy.
"""
