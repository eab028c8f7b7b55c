"""Errors people paste: what they mean on a TPU or on Kaggle, and what to do about them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    error: str  # the part of the text that was recognised
    cause: str
    fix: str


# pattern -> (cause, fix); the first that is found counts, so the special stands before the general.
KNOWN: tuple[tuple[str, str, str], ...] = (
    # TPU: is there one, and who may use it
    (
        r"ConfigureDistributedTpuOp_DoWork not available|TpuExecutable_FreeMaybeOwningDeviceMemoryArray not available",
        "tensorflow-tpu and libtpu do not belong together: "
        "tensorflow-tpu 2.20 takes any newer libtpu, and aborts with it.",
        "pip install tensorflow-tpu==2.19.1 (it pins libtpu 0.0.10), or use the JAX backend with tensorflow-cpu.",
    ),
    (
        r"No OpKernel was registered to support Op 'ConfigureDistributedTPU'|TPUs not found in the cluster",
        "this TensorFlow is the CPU wheel: it knows no TPU. Kaggle's and Colab's TPU images give the TPU to JAX.",
        "train with the JAX backend (KERAS_BACKEND=jax), or install tensorflow-tpu==2.19.1 in a clean environment.",
    ),
    (
        r"No TPU platform found|Unable to initialize backend 'tpu'|"
        r"No registered '?TPU'? device|failed to get default device.*tpu",
        "no TPU is attached to this session, or it runs in the CPU image.",
        "choose TPU v5e-8 as accelerator; in kernel metadata leave "
        "docker_image out: with it, a TPU push runs on the CPU image.",
    ),
    (
        r"Please provide a TPU Name to connect to",
        "TPUClusterResolver() was called without a TPU node; the node architecture is gone from Kaggle and Colab.",
        "on a TPU VM use TPUClusterResolver(tpu='local'), or JAX, which finds the TPU itself.",
    ),
    (
        r"libtpu_lockfile|libtpu\.so (?:is )?already in use|The TPU is already in use|"
        r"Internal error when accessing libtpu multi-process lockfile",
        "another process holds the TPU (only one may), or a killed one left its lock.",
        "end the other Python process or restart the notebook; when none is left remove the libtpu_lockfile it names.",
    ),
    (
        r"tensorflow[-_]tpu.*jax|Attempting to register (?:factory|PJRT)|PJRT_Api already exists for device type tpu",
        "two frameworks claim the TPU in one process.",
        "beside JAX install tensorflow-cpu, never tensorflow-tpu.",
    ),
    (
        r"metadata\.google\.internal|Failed to get TPU metadata|169\.254\.169\.254",
        "a TPU or Google Cloud library asks the metadata server, which exists only on Google Cloud.",
        "elsewhere set TPU_SKIP_MDS_QUERY=1 (TPU libraries) and NO_GCE_CHECK=true (gs:// in TensorFlow).",
    ),
    (
        r"UnavailableError|Socket closed|Connection reset by peer.*(?:tpu|grpc)|failed to connect to all addresses",
        "the TPU worker went away: it was preempted, ran out of host memory, or the session ended.",
        "run the same command again: training goes on from its "
        "last checkpoint. If it comes at the same step every time, "
        "the host is out of memory: lower train.batch, or do not cache decoded images.",
    ),
    # TPU: memory, shapes, ops
    (
        r"CompileTimeHbmOom|RESOURCE_EXHAUSTED.*(?:HBM|hbm)|"
        r"Ran out of memory in memory space hbm|exceeds available HBM",
        "the step does not fit into the memory of one TPU core (the message says how much it needs).",
        "lower train.batch or the member's image_size, or set "
        "train.precision=bfloat16; `make preflight` tells before you pay.",
    ),
    (
        r"ResourceExhausted(?:Error)?|OOM when allocating tensor|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED",
        "the device is out of memory.",
        "lower train.batch or the member's image_size, or set train.precision=bfloat16.",
    ),
    (
        r"XLA_TPU_JIT|not compilable|Detected unsupported operations|"
        r"ImageProjectiveTransformV3|StatelessRandomGammaV3|No registered '\w+' OpKernel for XLA",
        "an operation in the training step cannot be compiled for the TPU; ten of Keras' random layers are such.",
        "do it on the host, in the input pipeline, where augmentation belongs here.",
    ),
    (
        r"must be a compile-time constant|Dynamic shapes? (?:is|are) not supported|"
        r"Only support static input shape|input shape.*dynamic",
        "a shape is not known when the step is compiled; a TPU compiles one shape.",
        "fill every batch up to full size (padding is marked and removed here), and fix sizes in the input pipeline.",
    ),
    (
        r"IndivisibleError|should be divisible by|not divisible by (?:the )?number of (?:devices|replicas)",
        "the batch does not divide by the number of devices.",
        "make train.batch and predict.batch multiples of the number of cores (8 on a v5e-8).",
    ),
    (
        r"You must feed a value for placeholder tensor 'while/cond/Placeholder'",
        "MirroredStrategy on logical devices cannot run inside a TensorFlow loop with its default reduction.",
        "give it cross_device_ops=tf.distribute.ReductionToOneDevice().",
    ),
    (
        r"merge_call called while defining a new graph",
        "Keras' gradient accumulation and EMA overwriting do not work under a strategy.",
        "accumulate inside the step, and swap averaged weights in at the end of an epoch.",
    ),
    # gs://
    (
        r"Anonymous caller does not have storage|anonymous caller.*storage\.objects",
        "gs:// is read without an account.",
        "on Google Cloud give the machine's service account the role Storage Object Viewer; elsewhere run "
        "`gcloud auth application-default login`.",
    ),
    (
        r"does not have storage\.(?:objects|buckets)\.\w+ access|"
        r"AccessDenied.*storage\.googleapis|Error code 403.*storage\.googleapis",
        "the account that reads the bucket may not. For a TPU node that is the TPU's own service account, not yours.",
        "grant Storage Object Viewer on the bucket to the account in the message.",
    ),
    (
        r"The specified bucket does not exist|Error code 404.*storage\.googleapis|NotFoundError.*gs://",
        "the bucket or path does not exist. Kaggle's own buckets (kds-...) change their names every few days.",
        "take the path anew in every session (KaggleDatasets().get_gcs_path), and check the spelling of your own.",
    ),
    (
        r"Could not resolve host: (?:www|storage)\.googleapis\.com",
        "there is no way to Google's storage from here.",
        "switch the kernel's internet on, or copy the data to the local disk first.",
    ),
    (
        r"FailedPreconditionError.*local file ?system|"
        r"UnimplementedError: File system scheme '\[local\]' not implemented",
        "a remote TPU node was given a local path: it reads with its own file system, not yours.",
        "put the data on gs:// for a TPU node; a TPU VM reads local files.",
    ),
    # Kaggle
    (
        r"You must accept this competition'?s rules|Must accept (?:the )?rules",
        "the rules are not accepted.",
        "accept them on the Rules page of the competition, then run this again; it cannot be done through the API.",
    ),
    (
        r"(?i)phone.{0,20}verif|verif.{0,20}phone",
        "the account's phone number is not verified: without it neither internet, GPU and TPU nor many competitions.",
        "verify it at https://www.kaggle.com/settings.",
    ),
    (
        r"Permission '(?:competitions|kernels|datasets)\.\w+' was denied",
        "Kaggle answers 403 for a wrong name as well as for one that is private.",
        "check the spelling (the last part of the link) and, for a kernel, that title and slug agree.",
    ),
    (
        r"Maximum (?:batch )?(?:GPU|TPU|CPU)? ?session count of \d+ reached",
        "as many kernels run as your account may.",
        "wait for one to end or stop one at https://www.kaggle.com/code (Active Events).",
    ),
    (
        r"(?i)weekly (?:GPU|TPU) quota|(?:GPU|TPU) quota (?:has been )?(?:exceeded|reached)|"
        r"used all .* (?:GPU|TPU) (?:hours|quota)",
        "this week's hours on the accelerator are used up.",
        "`kaggle quota` tells when they are renewed; until then train fold by fold elsewhere, the results merge.",
    ),
    (
        r"\b429 (?:Client|Too|error)|HTTP(?: code)? 429|Too [Mm]any [Rr]equests",
        "Kaggle limits how often it is asked; the limit is not published and may last for half an hour.",
        "wait, then run the same command: a download goes on where it stopped.",
    ),
    (
        r"daily [Ss]ubmission allowance|Submission limit reached|submissions? (?:per|a) day",
        "the day's submissions are used up.",
        "days are counted in UTC: submit after midnight UTC.",
    ),
    (
        r"Submission must have \d+ rows|Required column '?\w+'? could not be found|incorrect (?:headers?|columns?)",
        "the file is not shaped like sample_submission.csv.",
        "`make submit` checks rows, ids and columns before it sends; make the sample anew with `make download FORCE=1` "
        "when it says that the sample is stale.",
    ),
    (
        r"Could not submit to competition",
        "the upload failed; the client says nothing more, and exits with 0.",
        "nothing was submitted: run `make submit` again.",
    ),
    (
        r"Authentication required to call the Kaggle API",
        "the client has no credential that works: none was found, or Kaggle refused the one it has (then an expired "
        "KAGGLE_API_TOKEN is the usual reason; it wins over a good key).",
        "make a new token at https://www.kaggle.com/settings, or unset the old one; `make doctor` says which is used.",
    ),
    (
        r"401 - Unauthorized|401 Client Error|(?i:unauthenticated)|Invalid credentials",
        "Kaggle does not accept the token. An expired KAGGLE_API_TOKEN wins over a good key.",
        "make a new token at https://www.kaggle.com/settings, or unset the old one; `make doctor` says which is used.",
    ),
    (
        r"403 Client Error: Forbidden for url|403 - Forbidden",
        "Kaggle refuses this account: the rules are not accepted, the phone number is not verified, or the name is wrong "
        "or private. A signed link that has expired gives the same error.",
        "`make doctor` asks about the competition of the parameters and names the reason; otherwise open its page while "
        "logged in.",
    ),
    (
        r"(?m)^\s*(?:Error: )?Not found\.?\s*$|404 Client Error|404 - Not Found",
        "Kaggle knows no competition, dataset, kernel or submission of that name or number.",
        "check the spelling: the name is the last part of the link, without www.kaggle.com/competitions/.",
    ),
    (
        r"An internal server error occurred|50[0234] Server Error",
        "Kaggle's server failed; the request may have had its effect although no answer came.",
        "try again later; after a submission or a kernel push look at `make submissions` or the kernel's page first.",
    ),
    (
        r"400 Client Error: Bad Request|400 - Bad Request",
        "Kaggle does not take the request: often a file, a name or a date that it does not allow.",
        "compare the submission's file and columns with sample_submission.csv, and look at the competition's page for a "
        "deadline that is over.",
    ),
    (
        r"Could not find competition - please verify|No competition specified",
        "the command names no competition, or one that Kaggle does not know.",
        "set competition.slug: the last part of the competition's link.",
    ),
    (
        r"Skipping, found more recently modified local copy",
        "the client keeps a file that is there, even if it is damaged: it only compares dates.",
        "`make download FORCE=1` compares sizes and checksums; for a download of your own remove the file first.",
    ),
    (
        r"Downloaded file size \(\d+\) does not match expected size|IncompleteRead|Download failed after \d+ retries",
        "the connection was cut in the middle of a download.",
        "`make download` goes on where it stopped.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError",
        "the certificate is not accepted, usually because a proxy of your network shows its own.",
        "put that proxy's certificate into a file and name it in REQUESTS_CA_BUNDLE.",
    ),
    (
        r"NameResolutionError|Failed to resolve|name resolution|Max retries exceeded|ProxyError|RemoteDisconnected",
        "the server was not reached.",
        "check the network and HTTP_PROXY, HTTPS_PROXY, NO_PROXY; in a Kaggle notebook switch the internet on.",
    ),
    (
        r"BadZipFile|File is not a zip file|Bad CRC-32",
        "the archive is damaged, or an error page was saved under its name.",
        "`make download FORCE=1` fetches it again and checks every file.",
    ),
    (
        r"ModuleNotFoundError: No module named 'six'",
        "kaggle 2.2.4 and 2.2.5 need six and do not ask for it.",
        "pip install six.",
    ),
    # data and environment
    (
        r"DataLossError|corrupted record at|truncated record at",
        "a TFRecord file is damaged or cut.",
        "`make download FORCE=1`, then `make train`: what is whole is not made again.",
    ),
    (
        r"AlreadyExistsError.*(?:lockfile|cache)|cache.*lockfile",
        "a killed process left the lock of a tf.data cache.",
        "remove the .lockfile that the message names.",
    ),
    (
        r"database is locked",
        "several processes write to one Optuna SQLite file.",
        "use the journal storage: it is made for that.",
    ),
    (
        r"No space left on device|\[Errno 28\]",
        "the disk is full.",
        "make room; work/ may always be removed, and what was finished elsewhere in it is made again.",
    ),
)


def explain(text: str) -> Explanation | None:
    """What a pasted error means; None when it is not known here."""
    for pattern, cause, fix in KNOWN:
        if found := re.search(pattern, text):
            return Explanation(" ".join(found.group(0).split())[:200], cause, fix)
    return None
