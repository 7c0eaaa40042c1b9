# GKE over three zones: on-demand GPUs as a floor, spot above it; a name with a certificate; nothing
# reachable from outside but that name.

terraform {
  required_version = ">= 1.9"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }

  # A bucket of your own with versioning, made beforehand; Cloud Storage keeps the lock as well. The
  # values come by `terraform init -backend-config=backend.hcl` (see backend.hcl.example).
  backend "gcs" {}
}

variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of Google Cloud."
}

variable "zones" {
  type        = list(string)
  description = "Zones of the region that have the GPUs."
}

variable "domain" {
  type        = object({ name = string, zone = string, client_cidrs = set(string) })
  description = "Name that clients use, its zone of Cloud DNS, and who may reach it."
}

variable "image_repository" {
  type        = object({ location = string, name = string })
  description = "Repository in Artifact Registry that has the service's image."
}

variable "budget" {
  type        = object({ billing_account = string, monthly = number, currency = optional(string, "USD"), emails = list(string) })
  description = "What the project may cost in a month, and who is told."
}

provider "google" {
  project               = var.project
  region                = var.region
  user_project_override = true # the API of budgets asks for a project that pays for the call
  billing_project       = var.project

  default_labels = { environment = "production" }
}

data "google_client_config" "this" {}

provider "kubernetes" {
  host                   = "https://${module.cluster.cluster_endpoint}"
  cluster_ca_certificate = base64decode(module.cluster.cluster_ca)
  token                  = data.google_client_config.this.access_token
}

provider "helm" {
  kubernetes = {
    host                   = "https://${module.cluster.cluster_endpoint}"
    cluster_ca_certificate = base64decode(module.cluster.cluster_ca)
    token                  = data.google_client_config.this.access_token
  }
}

module "cluster" {
  source = "../../../modules/gcp"

  project          = var.project
  region           = var.region
  zones            = var.zones
  image_repository = var.image_repository
  system_pool      = { machine_type = "e2-standard-8", min = 3, max = 6 }

  gpu_pools = {
    l4      = { machine_type = "g2-standard-16", gpu_type = "nvidia-l4", gpu_count = 1, min = 2, max = 6 }
    l4-spot = { machine_type = "g2-standard-16", gpu_type = "nvidia-l4", gpu_count = 1, spot = true, max = 18 }
  }

  domain = merge(var.domain, { router_tls = true })
  budget = var.budget
}

module "service" {
  source = "../../../modules/service"

  service_account_annotations = module.cluster.service_account_annotations
  node_ports                  = module.cluster.node_ports
}

output "kubeconfig" {
  description = "The command that lets kubectl in, from inside the network."
  value       = "gcloud container clusters get-credentials ${module.cluster.cluster_name} --region ${var.region} --project ${var.project}"
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.cluster.weights_bucket
}

output "url" {
  description = "Where clients find the service."
  value       = module.cluster.url
}
