"""Whether each object has the fields that its kind has, and they have the right types.

Kubernetes' own kinds go by its schemas, which ``kubernetes-validate`` brings, oldest and newest
version that we name. Of the kinds of others, the fields are written down here: KubeRay's as of its
v1.7.0, the Prometheus operator's as far as we use them; fields that are not there are refused.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

import kubernetes_validate
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from checks.cluster_stack import Stack
from checks.kustomize import Tree

__all__ = ["VERSIONS", "check_schemas"]

VERSIONS = ("1.29", "1.37")
"""Of Kubernetes."""

Amounts: TypeAlias = dict[str, str | int]
Labels: TypeAlias = dict[str, str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Metadata(_Strict):
    name: str
    namespace: str = ""
    labels: Labels = {}
    annotations: Labels = {}


class _Object(_Strict):
    """The name in ``apiVersion`` and ``kind`` is checked by who looks the model up."""

    apiVersion: str
    kind: str
    metadata: _Metadata


class _UpgradeStrategy(_Strict):
    type: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]
    clusterUpgradeOptions: dict[str, Any] | None = None


class _AuthOptions(_Strict):
    mode: Literal["disabled", "token"] = "token"
    secretName: str | None = None
    enableK8sTokenAuth: bool | None = None


class _AutoscalerOptions(_Strict):
    resources: dict[str, Amounts] | None = None
    image: str | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    securityContext: dict[str, Any] | None = None
    idleTimeoutSeconds: int | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    version: Literal["v1", "v2"] | None = None
    env: list[dict[str, Any]] = []
    envFrom: list[dict[str, Any]] = []
    volumeMounts: list[dict[str, Any]] = []
    command: list[str] = []
    args: list[str] = []


class _RedisCredential(_Strict):
    value: str | None = None
    valueFrom: dict[str, Any] | None = None


class _FaultTolerance(_Strict):
    backend: Literal["redis"] = "redis"
    redisAddress: str
    redisUsername: _RedisCredential | None = None
    redisPassword: _RedisCredential | None = None
    externalStorageNamespace: str | None = None


class _HeadGroup(_Strict):
    rayStartParams: Labels
    template: dict[str, Any]
    headService: dict[str, Any] | None = None
    enableIngress: bool | None = None
    ingressOptions: dict[str, Any] | None = None
    resources: Labels | None = None
    labels: Labels | None = None
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = None


class _WorkerGroup(_Strict):
    groupName: str
    replicas: Annotated[int, Field(ge=0)]
    minReplicas: Annotated[int, Field(ge=0)]
    maxReplicas: Annotated[int, Field(ge=0)]
    rayStartParams: Labels
    template: dict[str, Any]
    idleTimeoutSeconds: int | None = None
    priority: int | None = None
    numOfHosts: Annotated[int, Field(ge=1)] = 1
    resources: Labels | None = None
    labels: Labels | None = None
    suspend: bool | None = None
    scaleStrategy: dict[str, Any] | None = None


class _Cluster(_Strict):
    rayVersion: str
    headGroupSpec: _HeadGroup
    workerGroupSpecs: list[_WorkerGroup] = []
    enableInTreeAutoscaling: bool = False
    autoscalerOptions: _AutoscalerOptions | None = None
    gcsFaultToleranceOptions: _FaultTolerance | None = None
    authOptions: _AuthOptions | None = None
    networkPolicy: dict[str, Any] | None = None
    tlsOptions: dict[str, Any] | None = None
    historyServerOptions: dict[str, Any] | None = None
    headServiceAnnotations: Labels | None = None
    upgradeStrategy: dict[str, Any] | None = None
    managedBy: str | None = None
    suspend: bool | None = None


class _RayServiceSpec(_Strict):
    serveConfigV2: str
    rayClusterConfig: _Cluster
    upgradeStrategy: _UpgradeStrategy | None = None
    rayClusterDeletionDelaySeconds: Annotated[int, Field(ge=0)] | None = None
    excludeHeadPodFromServeSvc: bool = False
    serveService: dict[str, Any] | None = None
    managedBy: str | None = None
    suspend: bool | None = None


class _RayService(_Object):
    spec: _RayServiceSpec


class _TlsConfig(_Strict):
    insecureSkipVerify: bool | None = None
    serverName: str | None = None
    ca: dict[str, Any] | None = None


class _PodEndpoint(_Strict):
    port: str
    path: str = "/metrics"
    interval: str | None = None
    scheme: Literal["http", "https"] = "http"
    tlsConfig: _TlsConfig | None = None


class _PodMonitorSpec(_Strict):
    selector: dict[str, Any]
    podMetricsEndpoints: list[_PodEndpoint]
    namespaceSelector: dict[str, Any] | None = None


class _PodMonitor(_Object):
    spec: _PodMonitorSpec


class _StaticConfig(_Strict):
    targets: list[str]
    labels: Labels = {}


class _ScrapeConfigSpec(_Strict):
    staticConfigs: list[_StaticConfig]
    metricsPath: str = "/metrics"
    scrapeInterval: str | None = None
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    tlsConfig: _TlsConfig | None = None


class _ScrapeConfig(_Object):
    spec: _ScrapeConfigSpec


class _Rule(_Strict):
    alert: str
    expr: str
    labels: Labels
    annotations: Labels
    lasts: Annotated[str, Field(alias="for")]


class _RuleGroup(_Strict):
    name: str
    interval: str | None = None
    rules: list[_Rule]


class _PrometheusRuleSpec(_Strict):
    groups: list[_RuleGroup]


class _PrometheusRule(_Object):
    spec: _PrometheusRuleSpec


_OTHERS: dict[tuple[str, str], type[_Object]] = {
    ("ray.io/v1", "RayService"): _RayService,
    ("monitoring.coreos.com/v1", "PodMonitor"): _PodMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _PrometheusRule,
    ("monitoring.coreos.com/v1alpha1", "ScrapeConfig"): _ScrapeConfig,
}


def check_schemas(stack: Stack) -> Iterator[str]:
    """A line for each object that is not as its kind is; the pods of templates included."""
    for each in stack.objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        model = _OTHERS.get((each["apiVersion"], each["kind"]))
        if model is None:
            yield from _of_kubernetes(where, each)
        else:
            yield from _of_others(where, each, model)
    for pods in stack.ray_pods():
        metadata = {**pods.metadata, "name": "pod"}
        spec = {**pods.spec, "containers": list(pods.containers)}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        yield from _of_kubernetes(pods.where, pod)


def _of_kubernetes(where: str, tree: Tree) -> Iterator[str]:
    for fault in _faults_of(json.dumps(tree)):
        yield f"{where}: {fault}"


@functools.cache  # many stacks have the same objects
def _faults_of(text: str) -> list[str]:
    tree, faults = json.loads(text), []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(tree, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            faults.append(f"{path}: {error.message[:200]} (Kubernetes {version})")
        except kubernetes_validate.SchemaNotFoundError as error:
            faults.append(error.message)
    return faults


def _of_others(where: str, tree: Tree, model: type[_Object]) -> Iterator[str]:
    try:
        model.model_validate(tree)
    except ValidationError as error:
        for fault in error.errors():
            yield f"{where}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
