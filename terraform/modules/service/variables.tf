variable "namespace" {
  type        = string
  description = "Namespace of the service, as the cluster's module has it."
  default     = "chairlift"
}

variable "service_account" {
  type        = string
  description = "Service account of the service, as the cluster's module has it."
  default     = "chairlift"
}

variable "service_account_annotations" {
  type        = map(string)
  description = "What makes that account an identity of the cloud; an output of gcp. On EKS the pods need none."
  default     = {}
}

variable "http_port" {
  type        = number
  description = "http.port of the service; gRPC is 1000 above it."
  default     = 8000

  validation {
    condition     = var.http_port >= 1024 && var.http_port <= 64535
    error_message = "http_port must be 1024 to 64535."
  }
}

variable "node_ports" {
  type        = object({ http = number, grpc = number })
  description = "Ports of the nodes that lead to the routers; an output of the cluster's module."
}

variable "eks" {
  type = object({
    cluster_name        = string
    region              = string
    autoscaler_role_arn = string
    efa                 = optional(bool, false)
  })
  description = "What EKS does not bring: NVIDIA's device plugin, the cluster autoscaler, a storage class, and with `efa` the device plugin of EFA. Null on GKE."
  default     = null
}

variable "labels" {
  type        = map(string)
  description = "Labels of everything that takes some."
  default     = {}
}
