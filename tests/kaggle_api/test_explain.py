import pytest

from competition.kaggle.explain import explain

MESSAGES = {
    "F external/xla/ConfigureDistributedTpuOp_DoWork not available in this library.": "libtpu",
    "NotFoundError: TPUs not found in the cluster. Failed in initialization: No OpKernel was registered": "CPU wheel",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom ... (15.75G)": "memory of one TPU core",
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,224,224,32]": "device is out of memory",
    "InvalidArgumentError: Detected unsupported operations when trying to compile graph on XLA_TPU_JIT: "
    "ImageProjectiveTransformV3 (No registered 'ImageProjectiveTransformV3' OpKernel)": "cannot be compiled",
    'PermissionDeniedError: HTTP response code 403 with body \'{ "error": "service-1@cloud-tpu'
    ".iam.gserviceaccount.com does not have storage.objects.list access to the bucket.'": "service account",
    "Anonymous caller does not have storage.objects.get access": "without credentials",
    "403 Client Error: You must accept this competition's rules before": "rules are not accepted",
    "403 Forbidden: Permission 'kernels.get' was denied": "wrong name",
    "429 Client Error: Too Many Requests for url": "limits the rate",
    "Submission not allowed: Your team has used its daily Submission allowance (5) today": "today's submissions",
    "zipfile.BadZipFile: File is not a zip file": "archive is damaged",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "401 Client Error: Unauthorized for url": "does not accept the token",
    "Max retries exceeded with url: /v1 (Caused by NameResolutionError(": "could not be reached",
}


@pytest.mark.parametrize("text", MESSAGES)
def test_a_known_error_is_explained(text):
    explanation = explain(f"Traceback (most recent call last):\n  File x\n{text}\n")
    assert explanation is not None and MESSAGES[text] in explanation.cause
    assert explain("ZeroDivisionError: division by zero") is explain("epoch 3: 1429 images, 429 s") is None
