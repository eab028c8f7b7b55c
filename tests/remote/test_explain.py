import pytest

from competition.remote.explain import explain

PASTED = {
    "F external/xla/ConfigureDistributedTpuOp_DoWork not available in this library.": "libtpu",
    "NotFoundError: TPUs not found in the cluster. Failed in initialization: No OpKernel was registered": "CPU wheel",
    "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN": "no TPU is attached",
    "ValueError: Please provide a TPU Name to connect to.": "TPU node",
    "ABORTED: Internal error when accessing libtpu multi-process lockfile": "another process holds",
    "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed": "went away",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom ... (15.75G)": "memory of one TPU core",
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,224,224,32]": "device is out of memory",
    "InvalidArgumentError: Detected unsupported operations when trying to compile graph on XLA_TPU_JIT: "
    "ImageProjectiveTransformV3 (No registered 'ImageProjectiveTransformV3' OpKernel)": "cannot be compiled",
    "Input 1 to node `range` must be a compile-time constant": "one shape",
    "IndivisibleError: One of device_put arguments": "does not divide",
    'PermissionDeniedError: HTTP response code 403 with body \'{ "error": "service-1@cloud-tpu'
    ".iam.gserviceaccount.com does not have storage.objects.list access to the bucket.'": "service account",
    "Anonymous caller does not have storage.objects.get access": "without an account",
    "UnimplementedError: File system scheme '[local]' not implemented (file: '/data/x.tfrec')": "remote TPU node",
    "403 Client Error: You must accept this competition's rules before": "rules are not accepted",
    "403 Forbidden: Permission 'kernels.get' was denied": "wrong name",
    "Kernel push error: Maximum batch TPU session count of 1 reached.": "as many kernels run",
    "429 Client Error: Too Many Requests for url": "limits how often",
    "Submission not allowed: Your team has used its daily Submission allowance (5) today": "day's submissions",
    "Submission must have 7382 rows": "not shaped like",
    "zipfile.BadZipFile: File is not a zip file": "archive is damaged",
    "ModuleNotFoundError: No module named 'six'": "need six",
    "DataLossError: corrupted record at 12345": "damaged or cut",
    "OSError: [Errno 28] No space left on device": "disk is full",
}


@pytest.mark.parametrize("text", PASTED)
def test_a_known_error_is_explained(text):
    found = explain(f"Traceback (most recent call last):\n  File x\n{text}\n")
    assert found is not None
    assert PASTED[text] in found.cause
    assert found.fix.endswith(".")


def test_an_unknown_error_is_not_guessed_at():
    assert explain("ZeroDivisionError: division by zero") is None
    assert explain("") is None
    assert explain("epoch 3: 1429 images, 429 s") is None
