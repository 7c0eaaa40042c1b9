# What the service needs inside a cluster, of whichever cloud: its namespace and account, the
# operators, and the port of the nodes that the load balancer leads to. The service itself comes from
# cluster/manifests, by `kubectl apply -k`.

terraform {
  required_version = ">= 1.9"
  required_providers {
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }
}

locals {
  # As cluster/manifests label their pods.
  part_of = { "app.kubernetes.io/part-of" = "chairlift" }
  labels  = merge(var.labels, local.part_of)
  # Operators stay on machines that are not taken away.
  on_system = { "chairlift/pool" = "system" }
}

resource "kubernetes_namespace_v1" "this" {
  metadata {
    name = var.namespace

    labels = merge(local.labels, {
      "pod-security.kubernetes.io/enforce" = "restricted"
      "pod-security.kubernetes.io/warn"    = "restricted"
    })
  }
}

resource "kubernetes_service_account_v1" "this" {
  automount_service_account_token = false # the cloud's own token is mounted by the cloud

  metadata {
    name        = var.service_account
    namespace   = kubernetes_namespace_v1.this.metadata[0].name
    labels      = local.labels
    annotations = var.service_account_annotations
  }
}

# Routers that have a replica to send to: they are ready then.
resource "kubernetes_service_v1" "door" {
  metadata {
    name      = "chairlift-door"
    namespace = kubernetes_namespace_v1.this.metadata[0].name
    labels    = local.labels
  }

  spec {
    type     = "NodePort"
    selector = merge(local.part_of, { "app.kubernetes.io/component" = "router" })

    port {
      name        = "http"
      port        = var.http_port
      target_port = tostring(var.http_port)
      node_port   = var.node_ports.http
    }

    port {
      name        = "grpc"
      port        = var.http_port + 1000
      target_port = tostring(var.http_port + 1000)
      node_port   = var.node_ports.grpc
    }
  }
}

resource "helm_release" "kuberay" {
  name             = "kuberay-operator"
  repository       = "https://ray-project.github.io/kuberay-helm"
  chart            = "kuberay-operator"
  version          = "1.6.2"
  namespace        = "kuberay"
  create_namespace = true
  atomic           = true

  values = [yamlencode({
    nodeSelector   = local.on_system
    watchNamespace = [var.namespace]
    resources = {
      requests = { cpu = "100m", memory = "512Mi" }
      limits   = { cpu = "1", memory = "512Mi" }
    }
  })]
}

# What follows GKE brings by itself.
resource "helm_release" "nvidia" {
  count = var.eks == null ? 0 : 1

  name       = "nvidia-device-plugin"
  repository = "https://nvidia.github.io/k8s-device-plugin"
  chart      = "nvidia-device-plugin"
  version    = "0.19.3"
  namespace  = "kube-system"
  atomic     = true
}

resource "helm_release" "efa" {
  count = try(var.eks.efa, false) ? 1 : 0

  name       = "aws-efa-k8s-device-plugin"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-efa-k8s-device-plugin"
  version    = "v0.5.1"
  namespace  = "kube-system"
  atomic     = true

  values = [yamlencode({
    tolerations = [{ key = "nvidia.com/gpu", operator = "Exists", effect = "NoSchedule" }]
  })]
}

# Makes nodes for pods that find none, and takes away those that stand empty.
resource "helm_release" "autoscaler" {
  count = var.eks == null ? 0 : 1

  name       = "cluster-autoscaler"
  repository = "https://kubernetes.github.io/autoscaler"
  chart      = "cluster-autoscaler"
  version    = "9.57.0"
  namespace  = "kube-system"
  atomic     = true

  values = [yamlencode({
    nodeSelector  = local.on_system
    awsRegion     = var.eks.region
    autoDiscovery = { clusterName = var.eks.cluster_name }
    rbac = {
      serviceAccount = {
        name        = "cluster-autoscaler"
        annotations = { "eks.amazonaws.com/role-arn" = var.eks.autoscaler_role_arn }
      }
    }
    extraArgs = {
      balance-similar-node-groups   = true
      expander                      = "least-waste"
      scale-down-unneeded-time      = "10m"
      max-graceful-termination-sec  = 600
      skip-nodes-with-local-storage = false
    }
  })]
}

# For claims that name no class, such as that of Redis.
resource "kubernetes_storage_class_v1" "gp3" {
  count = var.eks == null ? 0 : 1

  storage_provisioner    = "ebs.csi.aws.com"
  volume_binding_mode    = "WaitForFirstConsumer"
  allow_volume_expansion = true
  parameters             = { type = "gp3", encrypted = "true" }

  metadata {
    name        = "gp3"
    labels      = local.labels
    annotations = { "storageclass.kubernetes.io/is-default-class" = "true" }
  }
}
