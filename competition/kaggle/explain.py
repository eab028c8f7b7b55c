"""Explain common error messages of TPUs, Kaggle, gs:// and the environment: cause and fix."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    error: str  # the part of the text that was recognised
    cause: str
    fix: str


# pattern -> (cause, fix); the first match counts, so specific patterns precede general ones.
KNOWN: tuple[tuple[str, str, str], ...] = (
    # TPU: availability and access
    (
        r"ConfigureDistributedTpuOp_DoWork not available|TpuExecutable_FreeMaybeOwningDeviceMemoryArray not available",
        "tensorflow-tpu and libtpu are incompatible: tensorflow-tpu 2.20 accepts any newer libtpu, and aborts with it.",
        "pip install tensorflow-tpu==2.19.1 (it pins libtpu 0.0.10), or use the JAX backend with tensorflow-cpu.",
    ),
    (
        r"No OpKernel was registered to support Op 'ConfigureDistributedTPU'|TPUs not found in the cluster",
        "this TensorFlow is the CPU wheel, without TPU support. Kaggle's and Colab's TPU images give the TPU to JAX.",
        "train with the JAX backend (KERAS_BACKEND=jax), or install tensorflow-tpu==2.19.1 in a clean environment.",
    ),
    (
        r"No TPU platform found|Unable to initialize backend 'tpu'|"
        r"No registered '?TPU'? device|failed to get default device.*tpu",
        "no TPU is attached to this session, or it runs in the CPU image.",
        "choose TPU v5e-8 as accelerator; leave docker_image out of the kernel metadata: with it, a TPU push runs on the "
        "CPU image.",
    ),
    (
        r"Please provide a TPU Name to connect to",
        "TPUClusterResolver() was called without a TPU node; the node architecture is gone from Kaggle and Colab.",
        "on a TPU VM use TPUClusterResolver(tpu='local'), or JAX, which finds the TPU itself.",
    ),
    (
        r"libtpu_lockfile|libtpu\.so (?:is )?already in use|The TPU is already in use|"
        r"Internal error when accessing libtpu multi-process lockfile",
        "another process uses the TPU (only one can), or a killed one left its lock file.",
        "end the other Python process or restart the notebook; if there is none, remove the libtpu_lockfile in the message.",
    ),
    (
        r"tensorflow[-_]tpu.*jax|Attempting to register (?:factory|PJRT)|PJRT_Api already exists for device type tpu",
        "two frameworks try to use the TPU in one process.",
        "install tensorflow-cpu, not tensorflow-tpu, together with JAX.",
    ),
    (
        r"metadata\.google\.internal|Failed to get TPU metadata|169\.254\.169\.254",
        "a TPU or Google Cloud library asks the metadata server, which exists only on Google Cloud.",
        "elsewhere set TPU_SKIP_MDS_QUERY=1 (TPU libraries) and NO_GCE_CHECK=true (gs:// in TensorFlow).",
    ),
    (
        r"UnavailableError|Socket closed|Connection reset by peer.*(?:tpu|grpc)|failed to connect to all addresses",
        "the TPU worker stopped: it was preempted, ran out of host memory, or the session ended.",
        "run the same command again: training resumes from its last checkpoint. If it fails at the same step every time, "
        "the host is out of memory: lower train.batch, or do not cache decoded images.",
    ),
    # TPU: memory, shapes, ops
    (
        r"CompileTimeHbmOom|RESOURCE_EXHAUSTED.*(?:HBM|hbm)|"
        r"Ran out of memory in memory space hbm|exceeds available HBM",
        "the training step does not fit into the memory of one TPU core (the message says how much it needs).",
        "lower train.batch or the member's image_size, or set train.precision=bfloat16; `make preflight` checks this "
        "without a TPU.",
    ),
    (
        r"ResourceExhausted(?:Error)?|OOM when allocating tensor|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED",
        "the device is out of memory.",
        "lower train.batch or the member's image_size, or set train.precision=bfloat16.",
    ),
    (
        r"XLA_TPU_JIT|not compilable|Detected unsupported operations|"
        r"ImageProjectiveTransformV3|StatelessRandomGammaV3|No registered '\w+' OpKernel for XLA",
        "an operation in the training step cannot be compiled for the TPU, such as those of ten of Keras' random layers.",
        "run it on the host, in the input pipeline, as this project's augmentation does.",
    ),
    (
        r"must be a compile-time constant|Dynamic shapes? (?:is|are) not supported|"
        r"Only support static input shape|input shape.*dynamic",
        "a shape is unknown when the step is compiled; a TPU program has static shapes.",
        "pad every batch to full size (this project masks the padding), and use fixed sizes in the input pipeline.",
    ),
    (
        r"IndivisibleError|should be divisible by|not divisible by (?:the )?number of (?:devices|replicas)",
        "the batch size is not divisible by the number of devices.",
        "make train.batch and predict.batch multiples of the number of cores (8 on a v5e-8).",
    ),
    (
        r"You must feed a value for placeholder tensor 'while/cond/Placeholder'",
        "MirroredStrategy on logical devices cannot run inside a TensorFlow loop with its default reduction.",
        "pass cross_device_ops=tf.distribute.ReductionToOneDevice().",
    ),
    (
        r"merge_call called while defining a new graph",
        "Keras' gradient accumulation and EMA overwriting do not work under a strategy.",
        "accumulate gradients inside the step, and assign the averaged weights at the end of an epoch.",
    ),
    # gs://
    (
        r"Anonymous caller does not have storage|anonymous caller.*storage\.objects",
        "gs:// is read without credentials.",
        "on Google Cloud grant the machine's service account the role Storage Object Viewer; elsewhere run "
        "`gcloud auth application-default login`.",
    ),
    (
        r"does not have storage\.(?:objects|buckets)\.\w+ access|"
        r"AccessDenied.*storage\.googleapis|Error code 403.*storage\.googleapis",
        "the account has no read access to the bucket. A TPU node uses the TPU's own service account, not yours.",
        "grant Storage Object Viewer on the bucket to the account in the message.",
    ),
    (
        r"The specified bucket does not exist|Error code 404.*storage\.googleapis|NotFoundError.*gs://",
        "the bucket or path does not exist. Kaggle's own buckets (kds-...) change their names every few days.",
        "get the path in every session (KaggleDatasets().get_gcs_path), and check the spelling of your own bucket.",
    ),
    (
        r"Could not resolve host: (?:www|storage)\.googleapis\.com",
        "Google's storage cannot be reached from this machine.",
        "enable the kernel's internet access, or copy the data to the local disk first.",
    ),
    (
        r"FailedPreconditionError.*local file ?system|"
        r"UnimplementedError: File system scheme '\[local\]' not implemented",
        "a remote TPU node received a local path: it reads from its own file system, not from yours.",
        "copy the data to gs:// for a TPU node; a TPU VM reads local files.",
    ),
    # Kaggle
    (
        r"You must accept this competition'?s rules|Must accept (?:the )?rules",
        "the competition's rules are not accepted.",
        "accept them on the Rules page of the competition, then run this again; the API cannot accept them.",
    ),
    (
        r"(?i)phone.{0,20}verif|verif.{0,20}phone",
        "the account's phone number is not verified; internet access, GPU, TPU and many competitions require it.",
        "verify it at https://www.kaggle.com/settings.",
    ),
    (
        r"Permission '(?:competitions|kernels|datasets)\.\w+' was denied",
        "Kaggle answers 403 for a wrong name as well as for one that is private.",
        "check the spelling (the last part of the link) and, for a kernel, that title and slug agree.",
    ),
    (
        r"Maximum (?:batch )?(?:GPU|TPU|CPU)? ?session count of \d+ reached",
        "your account already runs the maximum number of kernels.",
        "wait until one ends, or stop one at https://www.kaggle.com/code (Active Events).",
    ),
    (
        r"(?i)weekly (?:GPU|TPU) quota|(?:GPU|TPU) quota (?:has been )?(?:exceeded|reached)|"
        r"used all .* (?:GPU|TPU) (?:hours|quota)",
        "this week's accelerator quota is used up.",
        "`kaggle quota` shows when it is renewed; until then train folds on another machine, the results can be merged.",
    ),
    (
        r"\b429 (?:Client|Too|error)|HTTP(?: code)? 429|Too [Mm]any [Rr]equests",
        "Kaggle limits the rate of requests; the limit is not published and may last for half an hour.",
        "wait, then run the same command: a download is resumed.",
    ),
    (
        r"daily [Ss]ubmission allowance|Submission limit reached|submissions? (?:per|a) day",
        "today's submissions are used up.",
        "Kaggle counts days in UTC: submit after midnight UTC.",
    ),
    (
        r"Submission must have \d+ rows|Required column '?\w+'? could not be found|incorrect (?:headers?|columns?)",
        "the file does not have the rows and columns of sample_submission.csv.",
        "`make submit` checks rows, ids and columns before it sends the file; if it reports a stale sample, run `make "
        "download FORCE=1`.",
    ),
    (
        r"Could not submit to competition",
        "the upload failed; the Kaggle client gives no reason and exits with 0.",
        "nothing was submitted: run `make submit` again.",
    ),
    (
        r"Authentication required to call the Kaggle API",
        "no credential was found, or Kaggle rejected it (usually an expired KAGGLE_API_TOKEN, which takes precedence over "
        "a valid key).",
        "create a new token at https://www.kaggle.com/settings, or unset the old one; `make doctor` says which is used.",
    ),
    (
        r"401 - Unauthorized|401 Client Error|(?i:unauthenticated)|Invalid credentials",
        "Kaggle does not accept the token. An expired KAGGLE_API_TOKEN takes precedence over a valid key.",
        "create a new token at https://www.kaggle.com/settings, or unset the old one; `make doctor` says which is used.",
    ),
    (
        r"403 Client Error: Forbidden for url|403 - Forbidden",
        "Kaggle denies access: the rules are not accepted, the phone number is not verified, or the name is wrong or "
        "private. An expired signed link gives the same error.",
        "`make doctor` checks the competition in the parameters and names the reason; otherwise open its page while "
        "logged in.",
    ),
    (
        r"(?m)^\s*(?:Error: )?Not found\.?\s*$|404 Client Error|404 - Not Found",
        "Kaggle has no competition, dataset, kernel or submission with this name or number.",
        "check the spelling: the name is the last part of the link, without www.kaggle.com/competitions/.",
    ),
    (
        r"An internal server error occurred|50[0234] Server Error",
        "Kaggle's server failed; the request may have taken effect although the answer was lost.",
        "try again later; after a submission or a kernel push check `make submissions` or the kernel's page first.",
    ),
    (
        r"400 Client Error: Bad Request|400 - Bad Request",
        "Kaggle rejects the request, often because of a file, a name or a date that it does not allow.",
        "compare the submission's file and columns with sample_submission.csv, and check the deadline on the "
        "competition's page.",
    ),
    (
        r"Could not find competition - please verify|No competition specified",
        "the command names no competition, or one that does not exist on Kaggle.",
        "set competition.slug: the last part of the competition's link.",
    ),
    (
        r"Skipping, found more recently modified local copy",
        "the Kaggle client keeps an existing file even if it is damaged: it compares dates only.",
        "`make download FORCE=1` compares sizes and checksums; before a download by other means remove the file.",
    ),
    (
        r"Downloaded file size \(\d+\) does not match expected size|IncompleteRead|Download failed after \d+ retries",
        "the connection broke during a download.",
        "`make download` resumes it.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError",
        "the certificate is not accepted, usually because a proxy in your network replaces it with its own.",
        "save that proxy's certificate to a file and name the file in REQUESTS_CA_BUNDLE.",
    ),
    (
        r"NameResolutionError|Failed to resolve|name resolution|Max retries exceeded|ProxyError|RemoteDisconnected",
        "the server could not be reached.",
        "check the network and HTTP_PROXY, HTTPS_PROXY, NO_PROXY; in a Kaggle notebook enable internet access.",
    ),
    (
        r"BadZipFile|File is not a zip file|Bad CRC-32",
        "the archive is damaged, or an error page was saved in its place.",
        "`make download FORCE=1` downloads it again and checks every file.",
    ),
    (
        r"ModuleNotFoundError: No module named 'six'",
        "kaggle 2.2.4 and 2.2.5 need six and do not declare it as a dependency.",
        "pip install six.",
    ),
    # data and environment
    (
        r"DataLossError|corrupted record at|truncated record at",
        "a TFRecord file is damaged or truncated.",
        "`make download FORCE=1`, then `make train`: complete results are kept.",
    ),
    (
        r"AlreadyExistsError.*(?:lockfile|cache)|cache.*lockfile",
        "a killed process left the lock file of a tf.data cache.",
        "remove the .lockfile in the message.",
    ),
    (
        r"database is locked",
        "several processes write to one Optuna SQLite file.",
        "use Optuna's journal storage, which supports several processes.",
    ),
    (
        r"No space left on device|\[Errno 28\]",
        "the disk is full.",
        "free disk space; work/ may always be removed, its results are then computed again.",
    ),
)


def explain(text: str) -> Explanation | None:
    """Explain an error message; None if no pattern matches."""
    for pattern, cause, fix in KNOWN:
        if match := re.search(pattern, text):
            return Explanation(" ".join(match.group(0).split())[:200], cause, fix)
    return None
