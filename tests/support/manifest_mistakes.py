"""Mistakes that people make in manifests, one each, and what is to be said of them.

Overlay, object, place (a JSON pointer), what is put there, and a pattern of the message.
"""

from typing import Any

__all__ = ["GONE", "MISTAKES"]

HEAD = "/spec/rayClusterConfig/headGroupSpec"
ROUTERS = "/spec/rayClusterConfig/workerGroupSpecs/0"
WORKERS = "/spec/rayClusterConfig/workerGroupSpecs/1"
POD = "/template/spec"
MAIN = "/template/spec/containers/0"
RAY = "RayService/chairlift"
GONE = object()

MISTAKES: list[tuple[str, str, str, Any, str]] = [
    # Schemas
    ("cpu", RAY, f"{ROUTERS}{POD}/tolerance", 1, r"routers: spec: .*'tolerance' was unexpected"),
    ("cpu", RAY, f"{HEAD}{MAIN}/livenessProbe/httpGet/port", [1], r"head: .*livenessProbe"),
    ("cpu", RAY, "/spec/serveConfig", "", r"spec\.serveConfig: Extra inputs"),
    ("cpu", RAY, f"{ROUTERS}/minReplicas", "3", r"minReplicas: Input should be a valid integer"),
    ("cpu", RAY, f"{HEAD}/rayStartParams/num-cpus", 0, r"num-cpus: Input should be a valid string"),
    ("cpu", "Service/chairlift", "/spec/port", 1, r"Service/chairlift: spec: .*'port'"),
    ("production", "StatefulSet/chairlift-redis", "/spec/selector", GONE, r"'selector' is a requ"),
    (
        "production",
        "PodMonitor/chairlift-routers",
        "/spec/endpoints",
        [],
        r"spec\.endpoints: Extra",
    ),
    # KubeRay
    ("cpu", RAY, "/metadata/name", "c" * 48, r"a name of 47 letters at most"),
    ("cpu", RAY, "/spec/rayClusterConfig/authOptions/mode", "disabled", r"authOptions: token"),
    ("cpu", RAY, "/spec/excludeHeadPodFromServeSvc", False, r"no router is on the head"),
    ("cpu", RAY, f"{HEAD}{MAIN}/ports", [{"name": "x", "containerPort": 1}], r"'serve' among them"),
    ("cpu", RAY, f"{HEAD}/rayStartParams/num-cpus", "2", r"head: rayStartParams: num-cpus 0"),
    ("cpu", RAY, f"{WORKERS}/maxReplicas", 1, r"workers: replicas is not within"),
    ("cpu", RAY, f"{WORKERS}/maxReplicas", 9, r"without the autoscaler it has one size"),
    ("cpu", RAY, f"{WORKERS}/resources", {"CPU": "1"}, r"those of rayStartParams, not both"),
    ("cpu", RAY, f"{HEAD}/template/metadata/labels/app.kubernetes.io~1name", "x", r"is KubeRay's"),
    ("cpu", RAY, f"{WORKERS}/rayStartParams/labels", "a=b", r"labels is to stand elsewhere"),
    (
        "cpu",
        RAY,
        f"{HEAD}{MAIN}/env/-",
        {"name": "REDIS_PASSWORD", "value": "x"},
        r"set by KubeRay",
    ),
    ("cpu", RAY, f"{WORKERS}{MAIN}/command", ["sleep"], r"command: KubeRay makes it"),
    ("production", RAY, f"{WORKERS}{POD}/restartPolicy", "Always", r"the autoscaler replaces pods"),
    # Safety
    ("cpu", RAY, f"{WORKERS}{POD}/securityContext/runAsNonRoot", False, r"workers: .*run as root"),
    ("cpu", RAY, f"{WORKERS}{POD}/securityContext/runAsUser", 1000, r"10001 is the image's user"),
    ("cpu", RAY, f"{HEAD}{POD}/securityContext/seccompProfile", GONE, r"head: .*seccompProfile"),
    ("cpu", RAY, f"{HEAD}{POD}/hostNetwork", True, r"hostNetwork: it opens the node"),
    ("cpu", RAY, f"{HEAD}{POD}/enableServiceLinks", GONE, r"enableServiceLinks"),
    (
        "cpu",
        RAY,
        f"{ROUTERS}{MAIN}/securityContext/capabilities",
        {},
        r"ray-worker: .*capabilities",
    ),
    (
        *("cpu", RAY, f"{ROUTERS}{MAIN}/securityContext/allowPrivilegeEscalation", True),
        r"allowPrivilegeEscalation: False is wanted",
    ),
    (
        *("production", RAY, "/spec/rayClusterConfig/autoscalerOptions/securityContext", GONE),
        r"head: autoscaler: securityContext\.readOnlyRootFilesystem",
    ),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/image", "chairlift", r"a tag that says which it is"),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/image", "chairlift:latest", r"a tag that says which it is"),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/image", "r:5000/chairlift:0.0.9-cpu", r"this is version 0\.1"),
    ("production", "StatefulSet/chairlift-redis", f"/spec{MAIN}/image", "redis", r"redis: image"),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/resources/limits/memory", GONE, r"limits of memory are wanted"),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/resources/requests/cpu", "9", r"more cpu than its limit"),
    ("gpu", RAY, f"{WORKERS}{MAIN}/resources/requests/nvidia.com~1gpu", 2, r"same in requests and"),
    ("cpu", RAY, f"{ROUTERS}{POD}/automountServiceAccountToken", True, r"nothing here asks Kubern"),
    (
        "production",
        RAY,
        f"{HEAD}{POD}/automountServiceAccountToken",
        False,
        r"autoscaler needs Kube",
    ),
    ("cpu", RAY, f"{ROUTERS}{POD}/serviceAccountName", "other", r"there is no other"),
    ("cpu", RAY, f"{ROUTERS}{POD}/volumes/0", {"name": "x", "hostPath": {"path": "/"}}, r"x opens"),
    ("cpu", RAY, f"{ROUTERS}{POD}/volumes/0/emptyDir", {}, r"tmp has no sizeLimit"),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/volumeMounts/0/name", "tmpp", r"there is no volume tmpp"),
    (
        "cpu",
        RAY,
        f"{ROUTERS}{MAIN}/volumeMounts/0",
        {"name": "shm", "mountPath": "/x"},
        r"mounts tmp",
    ),
    (
        "gpu",
        "PersistentVolumeClaim/chairlift-weights",
        "/metadata/name",
        "w",
        r"no PersistentVolumeCl",
    ),
    (
        *("cpu", RAY, f"{HEAD}{POD}/volumes/3/secret/secretName", "chairlift-tokens"),
        r"Secret chairlift-tokens: .*README.md does not say",
    ),
    ("cpu", "Namespace/chairlift", "/metadata/labels", {}, r"'restricted' is wanted"),
    ("cpu", "Service/chairlift", "/metadata/namespace", "default", r"namespaces .* one is wanted"),
    # What selects, reaches and protects pods
    (
        "cpu",
        "Service/chairlift",
        "/spec/selector/app.kubernetes.io~1component",
        "rooter",
        r"no pod",
    ),
    (
        *("cpu", "PodDisruptionBudget/chairlift-workers"),
        *("/spec/selector/matchLabels/app.kubernetes.io~1component", "wrker"),
        r"workers: no PodDisruptionBudget selects it",
    ),
    ("cpu", "PodDisruptionBudget/chairlift-workers", "/spec/minAvailable", 2, r"2 of 2 pods"),
    ("cpu", "PodDisruptionBudget/chairlift-workers", "/spec/minAvailable", "50%", r"as a number"),
    (
        *("cpu", "PodDisruptionBudget/chairlift-workers"),
        *("/spec/selector/matchLabels/app.kubernetes.io~1component", "head"),
        r"the head is alone",
    ),
    (
        *("cpu", "NetworkPolicy/chairlift-inside", "/spec/podSelector/matchLabels"),
        {"app.kubernetes.io/component": "worker"},
        r"routers: no NetworkPolicy closes its egress",
    ),
    (
        "cpu",
        "NetworkPolicy/chairlift-inside",
        "/spec/policyTypes",
        ["Ingress"],
        r"closes its egress",
    ),
    (
        "cpu",
        "NetworkPolicy/chairlift-inside",
        "/spec/ingress/0/from",
        GONE,
        r"all ports would be op",
    ),
    (
        "cpu",
        "NetworkPolicy/chairlift-clients",
        "/spec/ingress/0/ports/0/port",
        8265,
        r"8265, 9000 wo",
    ),
    (
        "cpu",
        "NetworkPolicy/chairlift-clients",
        "/spec/ingress/0/ports",
        GONE,
        r"all ports would be",
    ),
    (
        *("cpu", "NetworkPolicy/chairlift-clients", "/spec/podSelector/matchLabels"),
        {"app.kubernetes.io/part-of": "chairlift"},
        r"workers: 8000, 9000 would be open",
    ),
    (
        *("cpu", "NetworkPolicy/chairlift-operator", "/spec/ingress/0/from/0/podSelector"),
        {},
        r"head: 8265 would be open to the outside",
    ),
    (
        *("production", "NetworkPolicy/chairlift-redis", "/spec/podSelector/matchLabels"),
        {"app.kubernetes.io/name": "redis"},
        r"StatefulSet/chairlift-redis: no NetworkPolicy closes its ingress",
    ),
    ("cpu", "Service/chairlift", "/spec/ports/0/targetPort", "web", r"has no port web 8000"),
    (
        *("cpu", RAY, f"{ROUTERS}{POD}/topologySpreadConstraints/1/topologyKey", "rack"),
        r"hosts and zones are wanted",
    ),
    (
        *("cpu", RAY, f"{ROUTERS}{POD}/topologySpreadConstraints/0/labelSelector/matchLabels"),
        {"app.kubernetes.io/component": "worker"},
        r"kubernetes.io/hostname selects other pods",
    ),
    # Chairlift's own settings
    (
        "cpu",
        RAY,
        "/spec/rayClusterConfig/rayVersion",
        "2.59.0",
        r"rayVersion: 2\.59\.0; constraints",
    ),
    (
        "cpu",
        RAY,
        f"{WORKERS}{MAIN}/env/0/value",
        "0",
        r"RAY_SERVE_THROUGHPUT_OPTIMIZED is 0, not 1",
    ),
    ("cpu", RAY, f"{WORKERS}{MAIN}/env/0", GONE, r"RAY_SERVE_THROUGHPUT_OPTIMIZED is None"),
    (
        *("production", RAY, "/spec/rayClusterConfig/autoscalerOptions/env", []),
        r"head: autoscaler: env: RAY_USAGE_STATS_ENABLED",
    ),
    (
        "cpu",
        RAY,
        f"{HEAD}{MAIN}/env/-",
        {"name": "CHAIRLIFT__HTTP__PORT", "value": "1"},
        r"go over",
    ),
    ("cpu", RAY, f"{HEAD}{MAIN}/startupProbe", GONE, r"head: startupProbe: httpGet is wanted"),
    (
        "cpu",
        RAY,
        f"{ROUTERS}{MAIN}/readinessProbe/httpGet/path",
        "/healthy",
        r"there is no /healthy",
    ),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/readinessProbe/httpGet/port", 8001, r"not answered at 8001"),
    ("cpu", RAY, f"{WORKERS}{MAIN}/readinessProbe/httpGet/port", 8000, r"not answered at 8000"),
    (
        "cpu",
        RAY,
        f"{WORKERS}{MAIN}/livenessProbe/httpGet/path",
        "/api/gcs_healthz",
        r"not answered",
    ),
    (
        *("production", RAY, f"{ROUTERS}{MAIN}/readinessProbe/httpGet/scheme", "HTTP"),
        r"the scheme is not that of http\.tls",
    ),
    (
        *(
            "cpu",
            RAY,
            f"{ROUTERS}{MAIN}/livenessProbe/httpGet",
            {"path": "/health", "port": "http"},
        ),
        r"a router without replicas is not to be restarted",
    ),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/readinessProbe/failureThreshold", 3, r"less than router\.wait"),
    (
        "cpu",
        RAY,
        f"{ROUTERS}{MAIN}/volumeMounts/2/mountPath",
        "/caches",
        r"/cache has to be writable",
    ),
    ("cpu", RAY, f"{HEAD}/rayStartParams/object-store-memory", GONE, r"134217728 is wanted"),
    ("cpu", RAY, f"{HEAD}{POD}/volumes/1/emptyDir/sizeLimit", "64Mi", r"smaller than Ray's object"),
    (
        "cpu",
        RAY,
        f"{HEAD}{MAIN}/volumeMounts/3/mountPath",
        "/etc/token",
        r"no Secret is mounted at",
    ),
    (
        "production",
        RAY,
        f"{ROUTERS}{MAIN}/volumeMounts/5/mountPath",
        "/tls",
        r"http\.tls\.certificate",
    ),
    (
        "production",
        RAY,
        f"{WORKERS}{MAIN}/volumeMounts/5/mountPath",
        "/s",
        r"workers\.tls\.ca: no Se",
    ),
    (
        "gpu",
        RAY,
        f"{ROUTERS}{MAIN}/volumeMounts/4/mountPath",
        "/weights",
        r"nothing is mounted at /mo",
    ),
    ("cpu", RAY, f"{WORKERS}{MAIN}/lifecycle/preStop/exec/command/1", "30", r"sleep 120 is wanted"),
    ("cpu", RAY, f"{WORKERS}{POD}/terminationGracePeriodSeconds", GONE, r"ends before preStop has"),
    (
        "cpu",
        RAY,
        f"{ROUTERS}/rayStartParams/resources",
        "'{\"chairlift_router\": 2}'",
        r"there are 6",
    ),
    ("cpu", RAY, f"{ROUTERS}{MAIN}/ports/1/containerPort", 9001, r"routers listen at .*9000"),
    (
        "cpu",
        RAY,
        f"{WORKERS}/rayStartParams/resources",
        GONE,
        r"no pod offers what their ranks take",
    ),
    ("cpu", RAY, f"{WORKERS}{MAIN}/resources/limits/cpu", "1", r"workers\.threads: 2 of 1 CPUs"),
    ("gpu", RAY, f"{WORKERS}{MAIN}/resources/limits/nvidia.com~1gpu", 2, r"pods for 4"),
    ("production", RAY, f"{WORKERS}/maxReplicas", 5, r"at most 8 replicas, and pods for 5"),
    ("production", RAY, "/spec/rayClusterConfig/enableInTreeAutoscaling", False, r"pods do not"),
    # Monitoring
    (
        *(
            "production",
            "PodMonitor/chairlift-routers",
            "/spec/podMetricsEndpoints/0/path",
            "/stats",
        ),
        r"there is no /stats",
    ),
    (
        "production",
        "ScrapeConfig/chairlift-cluster",
        "/spec/scheme",
        "HTTP",
        r"scheme of http\.tls",
    ),
    (
        *("production", "ScrapeConfig/chairlift-cluster", "/spec/staticConfigs/0/targets/0"),
        *("chairlift:8000", r"chairlift:8000 is no Service"),
    ),
    ("production", "PrometheusRule/chairlift", "/spec/groups/0/rules/0/expr", "1", r"--write"),
    (
        "production",
        "ConfigMap/chairlift-dashboard",
        "/data/dashboard.json",
        "{}",
        r"dashboard\.json",
    ),
]
