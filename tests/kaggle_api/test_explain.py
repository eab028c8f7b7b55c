import subprocess
import sys

import pytest

from competition.kaggle.explain import explain

MESSAGES = {
    "F external/xla/ConfigureDistributedTpuOp_DoWork not available in this library.": "libtpu",
    "NotFoundError: TPUs not found in the cluster. Failed in initialization: No OpKernel was registered": "CPU wheel",
    "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN": "no TPU is attached",
    "ValueError: Please provide a TPU Name to connect to.": "TPU node",
    "ABORTED: Internal error when accessing libtpu multi-process lockfile": "another process uses",
    "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed": "worker stopped",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom ... (15.75G)": "memory of one TPU core",
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,224,224,32]": "device is out of memory",
    "InvalidArgumentError: Detected unsupported operations when trying to compile graph on XLA_TPU_JIT: "
    "ImageProjectiveTransformV3 (No registered 'ImageProjectiveTransformV3' OpKernel)": "cannot be compiled",
    "Input 1 to node `range` must be a compile-time constant": "static shapes",
    "IndivisibleError: One of device_put arguments": "not divisible",
    'PermissionDeniedError: HTTP response code 403 with body \'{ "error": "service-1@cloud-tpu'
    ".iam.gserviceaccount.com does not have storage.objects.list access to the bucket.'": "service account",
    "Anonymous caller does not have storage.objects.get access": "without credentials",
    "UnimplementedError: File system scheme '[local]' not implemented (file: '/data/x.tfrec')": "remote TPU node",
    "403 Client Error: You must accept this competition's rules before": "rules are not accepted",
    "403 Forbidden: Permission 'kernels.get' was denied": "wrong name",
    "Kernel push error: Maximum batch TPU session count of 1 reached.": "maximum number of kernels",
    "429 Client Error: Too Many Requests for url": "limits the rate",
    "Submission not allowed: Your team has used its daily Submission allowance (5) today": "today's submissions",
    "Submission must have 7382 rows": "rows and columns of",
    "zipfile.BadZipFile: File is not a zip file": "archive is damaged",
    "ModuleNotFoundError: No module named 'six'": "need six",
    "DataLossError: corrupted record at 12345": "damaged or truncated",
    "OSError: [Errno 28] No space left on device": "disk is full",
    "401 Client Error: Unauthorized for url": "does not accept the token",
    "Invalid credentials!": "does not accept the token",
    "400 Client Error: Bad Request for url": "rejects the request",
    "Could not find competition - please verify that you entered the correct ID": "names no competition",
    "a.zip: Skipping, found more recently modified local copy (use --force": "even if it is damaged",
    "Downloaded file size (5) does not match expected size (9)": "broke during a download",
    "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate": "certificate is not accepted",
    "Max retries exceeded with url: /v1 (Caused by NameResolutionError(": "could not be reached",
    "404 Client Error: Not Found for url": "with this name",
}


@pytest.mark.parametrize("text", MESSAGES)
def test_a_known_error_is_explained(text):
    explanation = explain(f"Traceback (most recent call last):\n  File x\n{text}\n")
    assert explanation is not None
    assert MESSAGES[text] in explanation.cause
    assert explanation.fix.endswith(".")


def test_an_unknown_error_has_no_explanation():
    assert explain("ZeroDivisionError: division by zero") is None
    assert explain("") is None
    assert explain("epoch 3: 1429 images, 429 s") is None


CLI = {
    "no credential": (
        {"KAGGLE_USERNAME": "", "KAGGLE_KEY": ""},
        [],
        "Authentication required",
        "no credential was found",
    ),
    "wrong name": ({}, [], "Not found", "with this name"),
    "gateway": ({}, ["plain:502"], "502 Server Error", "server failed"),
}


@pytest.mark.parametrize("name", CLI)
def test_errors_printed_by_the_kaggle_command_are_explained(kaggle, home, name):
    variables, faults, printed, cause = CLI[name]
    kaggle.faults["ListDataFiles"] = list(faults)
    command = [sys.executable, "-c", "from kaggle.cli import main; main()", "competitions", "files", "absent"]
    process = subprocess.run(command, env=kaggle.environment(home, **variables), capture_output=True, text=True)
    text = process.stdout + process.stderr
    assert printed in text
    explanation = explain(text)
    assert explanation is not None
    assert cause in explanation.cause
